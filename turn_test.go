package acp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// noGaps makes the session one whose first turn has no capability notice.
func (r *stage) noGaps() {
	r.t.Helper()
	r.look(func(l *loop) { l.info.TokenCounts = true })
}

// begun starts a session without a capability notice.
func (r *stage) begun(prompt func(w wire)) {
	r.t.Helper()
	r.began(prompt)
	r.noGaps()
}

const noGrant = `{"sessionId":"s1","options":[{"optionId":"y","kind":"allow_once"}]}`

// TestDisposition is the table of SPEC 3, but for the rows in which we end the
// turn: those are TestFirstCauseDecides.
func TestDisposition(t *testing.T) {
	t.Parallel()
	const unasked = "agent reported a cancelled stop reason without a cancellation on either side"
	stop := func(reason string) func(*stage, wire) { return func(r *stage, w wire) { r.stop(w, reason) } }
	answer := func(result string) func(*stage, wire) { return func(r *stage, w wire) { r.answer(w, result) } }
	refuse := func(err string) func(*stage, wire) { return func(r *stage, w wire) { r.refuse(w, err) } }
	tests := []struct {
		name string
		do   func(*stage, wire)
		kind ErrorKind
		text string
		took time.Duration
		over bool // the session
	}{
		{"end_turn", stop("end_turn"), "", "", 0, false},
		{"refusal", stop("refusal"), ErrTurnRefused, "", 0, false},
		{"max_tokens", stop("max_tokens"), ErrTurnTokenLimit, "", 0, false},
		{"max_turn_requests", stop("max_turn_requests"), ErrTurnRequestLimit, "", 0, false},
		{"cancelled, nobody asked", stop("cancelled"), ErrTurnFailed, unasked, 0, false},
		{"any other value", stop("pau\\u001b[1mse"), ErrTurnOutcomeUnknown, "pause", 0, false},
		{"another case", stop("End_turn"), ErrTurnOutcomeUnknown, "End_turn", 0, false},
		{"an empty value", stop(""), ErrTurnOutcomeUnknown, "", 0, false},
		{"a result of null", answer(`null`), ErrTurnOutcomeUnknown, "", 0, false},
		{"a result that is no object", answer(`[1]`), ErrTurnOutcomeUnknown, "", 0, false},
		{"a stop reason that is no string", answer(`{"stopReason":17}`), ErrTurnOutcomeUnknown, ": 17", 0, false},
		{"an answer whose id is a string", func(r *stage, w wire) {
			r.send(`{"id":"` + string(w.ID) + `","result":{"stopReason":"end_turn"}}`)
		}, "", "", 0, false},
		{"an error of null beside a result", func(r *stage, w wire) {
			r.send(`{"id":` + string(w.ID) + `,"error":null,"result":{"stopReason":"end_turn"}}`)
		}, "", "", 0, false},
		{"a method of null beside a result", func(r *stage, w wire) {
			r.send(`{"id":` + string(w.ID) + `,"method":null,"result":{"stopReason":"end_turn"}}`)
		}, "", "", 0, false},
		{"a result of null beside an error", func(r *stage, w wire) {
			r.send(`{"id":` + string(w.ID) + `,"result":null,"error":{"code":3,"message":"m"}}`)
		}, ErrResponseError, "error 3: m", 0, false},
		{"an error with text as data", refuse(`{"code":-32603,"message":"over\u202eloaded","data":"try later"}`), ErrResponseError, "error -32603: overloaded: try later", 0, false},
		{"an error with an object as data", refuse(`{"code":1,"message":"m","data":{"a": [1, 2]}}`), ErrResponseError, `error 1: m: {"a":[1,2]}`, 0, false},
		{"an error with null as data", refuse(`{"code":1,"message":"m","data":null}`), ErrResponseError, "error 1: m", 0, false},
		{"an error of other types", refuse(`{"code":"x","message":[]}`), ErrResponseError, "error 0: ", 0, false},
		{"-32000", refuse(`{"code":-32000,"message":"log in"}`), ErrResponseError, "error -32000: log in", 0, false},
		{"result and error", func(r *stage, w wire) {
			r.send(`{"id":` + string(w.ID) + `,"result":{"stopReason":"end_turn"},"error":{"code":1,"message":"m"}}`)
		}, ErrResponseError, "neither a result nor an error", 0, false},
		{"neither", func(r *stage, w wire) { r.send(`{"id":` + string(w.ID) + `}`) }, ErrResponseError, "neither a result nor an error", 0, false},
		{"the stream ended", func(r *stage, _ wire) { r.hangUp() }, ErrPortExit, "", time.Second, true},
		{"an exit", func(r *stage, _ wire) { r.say("boom\n"); r.exit("exit status 3", 3) }, ErrPortExit, "exit status 3: boom", 0, true},
		{"an exit inside the second behind the stream's end", func(r *stage, _ wire) {
			r.hangUp()
			r.later(time.Second-1, func() { r.exit("exit status 3", 3) })
		}, ErrPortExit, "exit status 3", time.Second - 1, true},
		{"an exit after it", func(r *stage, _ wire) {
			r.hangUp()
			r.signalled(func(bool) {})
			r.later(time.Second+1, func() { r.exit("exit status 3", 3) })
		}, ErrPortExit, "the agent connection was lost", time.Second, true},
		{"a last line without newline, then an exit", func(r *stage, w wire) {
			line := answerLine(w, `{"stopReason":"end_turn"}`)
			r.stdout.set(func() { r.stdout.data = append(r.stdout.data, line...) })
			r.exit("exit status 0", 0)
		}, "", "", 0, true},
		{"half a line, then an exit", func(r *stage, w wire) {
			line := answerLine(w, `{"stopReason":"end_turn"}`)
			r.stdout.set(func() { r.stdout.data = append(r.stdout.data, line[:len(line)-1]...) })
			r.exit("exit status 0", 0)
		}, ErrPortExit, "exit status 0", 0, true},
		{"more than 4 MiB of answers wait", func(r *stage, _ wire) { r.asksInVain() },
			ErrPortExit, "the agent does not read what it is sent", 0, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				first := true
				r.begun(func(w wire) {
					if !first {
						r.stop(w, "end_turn")
						return
					}
					first = false
					tc.do(r, w)
				})
				o := r.turn(t.Context())
				wantError(t, o.err, tc.kind, tc.text)
				wantTook(t, o.took, tc.took)
				synctest.Wait()
				switch o = r.turn(t.Context()); {
				case !tc.over:
					wantError(t, o.err, "")
				default:
					wantError(t, o.err, ErrPortExit)
					if o.events != nil {
						t.Error("a refused turn emitted events")
					}
				}
			})
		})
	}
}

// TestErrorsAreBounded: of an error answer and of a stop reason.
func TestErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, line := range []func(w wire) string{
		func(w wire) string { return errorLine(w, `{"code":1,"message":"`+long+`","data":"`+long+`"}`) },
		func(w wire) string { return errorLine(w, `{"code":1,"message":"m","data":["`+long+`"]}`) },
		func(w wire) string { return answerLine(w, `{"stopReason":"`+long+`"}`) },
	} {
		bubble(t, func(t *testing.T, r *stage) {
			r.began(func(w wire) { r.send(line(w)) })
			if o := r.turn(t.Context()); len(o.err.Error()) > 2500 || len(o.res.StopReason) > 200 {
				t.Errorf("an error of %d bytes, a stop reason of %d", len(o.err.Error()), len(o.res.StopReason))
			}
		})
	}
}

// TestErrorsAreRedacted: a secret is found behind what cleaning takes out of it
// and as JSON spells it.
func TestErrorsAreRedacted(t *testing.T) {
	const secret = "pass/word/1"
	for _, tc := range []struct {
		answer string
		kind   ErrorKind
	}{
		{`"error":{"code":1,"message":"` + secret + `"}`, ErrResponseError},
		{`"error":{"code":1,"message":"pass\u202e/word/1"}`, ErrResponseError},
		{`"error":{"code":1,"message":"m","data":"pass\u001b/word/1"}`, ErrResponseError},
		{`"error":{"code":1,"message":"m","data":["pass\/word\/1"]}`, ErrResponseError},
		{`"result":{"stopReason":"pass/\u0000word/1"}`, ErrTurnOutcomeUnknown},
	} {
		bubble(t, func(t *testing.T, r *stage) {
			r.c.servers = []mcpServer{{env: []mcpPair{{"A", secret}}}}
			r.c.hideSecrets(Config{})
			r.began(func(w wire) { r.send(`{"id":` + string(w.ID) + `,` + tc.answer + `}`) })
			wantError(t, r.turn(t.Context()).err, tc.kind, "[redacted]")
		})
	}
}

// What ends a turn from our side, once its prompt is out.
var causes = []struct {
	name string
	do   func(r *stage, cancel func())
	kind ErrorKind
}{
	{"the context", func(_ *stage, cancel func()) { cancel() }, ErrTurnCancelled},
	{"Stop", func(r *stage, _ func()) { go func() { _ = r.s.Stop(context.Background()) }() }, ErrTurnCancelled},
	{"a permission nobody can grant", func(r *stage, _ func()) { r.send(request("1", "session/request_permission", noGrant)) }, ErrTurnInputRequired},
	{"a question", func(r *stage, _ func()) { r.send(request("1", "elicitation/create", `{}`)) }, ErrTurnInputRequired},
	{"a line over the bound", func(r *stage, _ func()) { r.send(strings.Repeat("x", r.c.maxLine+1)) }, ErrTurnOutcomeUnknown},
}

// TestFirstCauseDecides sets each cause before everything that can follow it.
func TestFirstCauseDecides(t *testing.T) {
	t.Parallel()
	then := []struct {
		name string
		do   func(r *stage, w wire)
		took time.Duration // -1: what is asked for is awaited in full
	}{
		{"end_turn", func(r *stage, w wire) { r.stop(w, "end_turn") }, 0},
		{"cancelled", func(r *stage, w wire) { r.stop(w, "cancelled") }, 0},
		{"an unknown stop reason", func(r *stage, w wire) { r.stop(w, "zzz") }, 0},
		{"an error answer", func(r *stage, w wire) { r.refuse(w, `{"code":1,"message":"m"}`) }, 0},
		{"an answer that is none", func(r *stage, w wire) { r.send(`{"id":` + string(w.ID) + `}`) }, 0},
		{"an exit", func(r *stage, _ wire) { r.exit("exit status 1", 1) }, 0},
		{"the stream's end", func(r *stage, _ wire) { r.hangUp() }, -1},
		{"the other causes and silence", func(r *stage, _ wire) {
			r.send(strings.Repeat("x", r.c.maxLine+1), request("7", "session/request_permission", noGrant), request("8", "elicitation/create", `{}`))
		}, -1},
	}
	for _, c := range causes {
		for _, tc := range then {
			t.Run(c.name+", then "+tc.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *stage) {
					var prompt wire
					r.begun(func(w wire) { prompt = w })
					r.handle("session/cancel", func(wire) { tc.do(r, prompt) })
					why := errors.New("why")
					ctx, cancel := context.WithCancelCause(t.Context())
					over := r.goTurn(ctx, nil)
					synctest.Wait()
					c.do(r, func() { cancel(why) })
					synctest.Wait()
					cancel(why) // another cause: it comes second
					o := <-over
					wantError(t, o.err, c.kind)
					if tc.took == 0 {
						wantTook(t, o.took, 0)
					}
					if c.name == "the context" && !errors.Is(o.err, why) {
						t.Errorf("%v does not unwrap to the cause", o.err)
					}
					if n := len(r.sent("session/cancel")); n != 1 {
						t.Errorf("session/cancel went out %d times", n)
					}
				})
			})
		}
	}
}

// TestEndingIsBounded: a turn that we end waits for the read timeout, exactly,
// whatever goes on meanwhile, and the session stays usable.
func TestEndingIsBounded(t *testing.T) {
	for _, c := range causes {
		if c.name == "Stop" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				var prompt wire
				r.begun(func(w wire) { prompt = w })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := r.goTurn(ctx, nil)
				synctest.Wait()
				c.do(r, cancel)
				for i := range 29 {
					r.later(time.Duration(i)*time.Second, func() { r.send(chunk("x")) })
				}
				o := <-over
				wantError(t, o.err, c.kind)
				wantTook(t, o.took, r.c.readTimeout)
				if last := o.events[len(o.events)-2]; last.Message != strings.Repeat("x", 29) {
					t.Errorf("the message is %q: updates are delivered meanwhile", last.Message)
				}
				if n := r.log.count("WARN agent prompt timed out"); n != 1 {
					t.Errorf("%d records of the timeout", n)
				}
				r.stop(prompt, "cancelled")
				synctest.Wait()
				r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
				o = r.turn(t.Context())
				wantError(t, o.err, "")
				wantTook(t, o.took, 0)
			})
		})
	}
}

// TestWithdrawal: a prompt of which nothing is written is taken back.
func TestWithdrawal(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.stop(w, "end_turn") })
		r.stdin.set(func() { r.stdin.stuck = true })
		r.send(strings.Repeat(request("1", "fs/read_text_file", `{}`)+"\n", 2000)) // fills the pipe and more
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		o := r.turn(ctx)
		wantError(t, o.err, ErrTurnCancelled)
		wantTook(t, o.took, time.Second)
		r.stdin.set(func() { r.stdin.stuck = false })
		synctest.Wait()
		if len(r.sent("session/prompt"))+len(r.sent("session/cancel")) > 0 {
			t.Error("the runtime saw a prompt that was withdrawn")
		}
		if n := len(r.sent("")); n != 2000 {
			t.Errorf("%d answers", n)
		}
		o = r.turn(t.Context())
		wantError(t, o.err, "")
		wantTook(t, o.took, 0)
	})
}

// TestHalfWritten: a prompt that is half written is finished, and its
// session/cancel goes behind it.
func TestHalfWritten(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var prompt wire
		r.begun(func(w wire) { prompt = w })
		r.handle("session/cancel", func(wire) { r.stop(prompt, "cancelled") })
		r.stdin.set(func() { r.stdin.stuck, r.stdin.room = true, 30 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		over := r.goTurn(ctx, nil)
		time.Sleep(3 * time.Second)
		r.stdin.set(func() { r.stdin.stuck = false })
		o := <-over
		wantError(t, o.err, ErrTurnCancelled)
		wantTook(t, o.took, 3*time.Second)
		if o.res.StopReason != "cancelled" {
			t.Errorf("the result is %+v", o.res)
		}
	})
}

// TestOnePromptAtATime: a prompt that is still unanswered holds the next back.
func TestOnePromptAtATime(t *testing.T) {
	setUp := func(t *testing.T, f func(t *testing.T, r *stage, first wire)) {
		bubble(t, func(t *testing.T, r *stage) {
			var prompt wire
			r.begun(func(w wire) { prompt = w })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wantError(t, r.turn(ctx).err, ErrTurnCancelled)
			r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
			f(t, r, prompt)
		})
	}
	t.Run("the answer comes in time", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			r.send(update(`{"sessionUpdate":"plan","entries":[]}`))
			synctest.Wait()
			over := r.goTurn(t.Context(), nil)
			time.Sleep(r.c.readTimeout - 1)
			r.send(update(`{"sessionUpdate":"agent_thought_chunk","content":{}}`), chunk("late"))
			synctest.Wait()
			if len(r.sent("session/prompt")) != 1 {
				t.Error("two prompts are open")
			}
			r.stop(first, "cancelled")
			o := <-over
			wantError(t, o.err, "")
			wantTook(t, o.took, r.c.readTimeout-1)
			o.wants(t, "other_message plan update", "other_message reasoning block", "notification late")
		})
	})
	t.Run("it does not come", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			r.send(update(`{"sessionUpdate":"plan","entries":[]}`))
			synctest.Wait()
			o := r.turn(t.Context())
			wantError(t, o.err, ErrResponseTimeout)
			wantTook(t, o.took, r.c.readTimeout)
			o.wants(t)
			if len(r.sent("session/prompt")) != 1 {
				t.Error("the second prompt was sent")
			}
			r.stop(first, "cancelled")
			o = r.turn(t.Context())
			wantError(t, o.err, "")
			o.wants(t, "other_message plan update")
		})
	})
	t.Run("the context ends the wait", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o := r.turn(ctx)
			wantError(t, o.err, ErrTurnCancelled)
			wantTook(t, o.took, time.Second)
			if len(r.sent("session/prompt")) != 1 || len(r.sent("session/cancel")) != 1 {
				t.Error("something of the second turn was sent")
			}
		})
	})
	t.Run("Stop ends the wait", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			over := r.goTurn(t.Context(), nil)
			synctest.Wait()
			if err := r.s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			wantError(t, (<-over).err, ErrTurnCancelled)
		})
	})
	t.Run("an exit ends the wait", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			over := r.goTurn(t.Context(), nil)
			synctest.Wait()
			r.exit("exit status 1", 1)
			wantError(t, (<-over).err, ErrPortExit, "exit status 1")
		})
	})
	t.Run("a question during the wait ends the turn that follows", func(t *testing.T) {
		setUp(t, func(t *testing.T, r *stage, first wire) {
			over := r.goTurn(t.Context(), nil)
			synctest.Wait()
			r.send(request("5", "elicitation/create", `{}`))
			synctest.Wait()
			r.stop(first, "cancelled")
			o := <-over
			wantError(t, o.err, ErrTurnInputRequired)
			o.wants(t, "notification "+msgNeedsAnswer)
			r.turn(t.Context())
		})
	})
}

// TestRefusedTurns are turns that are not taken.
func TestRefusedTurns(t *testing.T) {
	refused := func(t *testing.T, r *stage, kind ErrorKind, texts ...string) {
		t.Helper()
		before := len(r.sent("session/prompt"))
		o := r.turn(t.Context())
		wantError(t, o.err, kind, texts...)
		synctest.Wait()
		if o.events != nil || len(r.sent("session/prompt")) != before {
			t.Errorf("a refused turn: events %v", o.events)
		}
		wantTook(t, o.took, 0)
	}
	bubble(t, func(t *testing.T, r *stage) {
		var prompt wire
		r.begun(func(w wire) { prompt = w })
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		refused(t, r, ErrResponseError, "a turn is already in flight")
		r.stop(prompt, "end_turn")
		wantError(t, (<-over).err, "")
		r.signalled(func(kill bool) {
			if kill {
				r.exit("signal: killed", -1)
			}
		})
		go func() { _ = r.s.Stop(context.Background()) }()
		synctest.Wait()
		refused(t, r, ErrPortExit, "the session is stopped") // while it is
		<-r.s.Done()
		refused(t, r, ErrPortExit, "the session is stopped")
	})
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(nil)
		r.exit("exit status 2", 2)
		<-r.s.Done()
		refused(t, r, ErrPortExit, "exit status 2")
	})
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(nil)
		r.hangUp()
		synctest.Wait()
		refused(t, r, ErrPortExit, "the agent connection was lost") // before the second is over
	})
}

// TestContextDoneAtTheCall is no refusal.
func TestContextDoneAtTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.began(func(w wire) { r.stop(w, "end_turn") })
		r.send(update(`{"sessionUpdate":"plan","entries":[]}`))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		o := r.turn(ctx)
		wantError(t, o.err, ErrTurnCancelled)
		o.wants(t)
		synctest.Wait()
		if slices.ContainsFunc(r.got, func(w wire) bool { return strings.HasPrefix(w.Method, "session/") && w.Method != "session/new" }) {
			t.Errorf("something was sent: %v", r.got)
		}
		o = r.turn(t.Context()) // what was queued and the notice wait for it
		o.wants(t, gapNotice("token counts"), "other_message plan update")
	})
}

func gapNotice(gaps string) string {
	return "notification this session started with a declared capability gap in: " + gaps
}

// TestRetryable is SPEC 3's classification.
func TestRetryable(t *testing.T) {
	for kind, want := range map[ErrorKind]bool{
		ErrAgentNotFound: false, ErrInvalidWorkspaceCWD: false, ErrTurnCancelled: false, ErrTurnRefused: false,
		ErrTurnTokenLimit: false, ErrTurnOutcomeUnknown: false, ErrTurnInputRequired: false,
		ErrResponseTimeout: true, ErrPortExit: true, ErrResponseError: true, ErrTurnFailed: true,
		ErrTurnRequestLimit: true, ErrCredentialUnverified: true,
	} {
		if kind.Retryable() != want {
			t.Errorf("%s: retryable is %v", kind, !want)
		}
	}
}
