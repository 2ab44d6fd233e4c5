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

// continuing makes the launch one that continues s0, with a runtime of these
// capabilities that knows no control method.
func (r *stage) continuing(caps string) {
	r.c.resume = "s0"
	r.caps = `{"protocolVersion":1,"agentInfo":{"name":"peer","version":"1.2"},"agentCapabilities":` + caps + `}`
	r.handle(controlMethod, func(w wire) { r.refuse(w, `{"code":-32601,"message":"no such method"}`) })
	r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
}

// methods are those of our requests so far, the handshake apart.
func (r *stage) methods() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.got {
		if w.Method != "" && w.Method != "initialize" {
			list = append(list, w.Method)
		}
	}
	return list
}

const (
	canLoad   = `{"loadSession":true}`
	canResume = `{"sessionCapabilities":{"resume":{}}}`
)

func old(text string) string {
	return updateOf("s0", `{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"`+text+`"}}`)
}

func oldKind(k, more string) string { return updateOf("s0", `{"sessionUpdate":"`+k+`"`+more+`}`) }

const userChunk = `,"content":{"type":"text","text":"q"}`

// TestRoute: which request continues a session.
func TestRoute(t *testing.T) {
	load := []string{controlMethod, "session/load"}
	resume := []string{controlMethod, "session/resume"}
	fresh := []string{"session/new"}
	tests := []struct {
		name, caps string
		want       []string
		resumed    bool
	}{
		{"load", canLoad, load, true},
		{"resume", canResume, resume, true},
		{"both", `{"loadSession":true,"sessionCapabilities":{"resume":{}}}`, load, true},
		{"neither", `{}`, fresh, false},
		{"load is false", `{"loadSession":false,"sessionCapabilities":{"resume":null}}`, fresh, false},
		{"load is no boolean", `{"loadSession":"true"}`, fresh, false},
		{"resume is anything but null", `{"loadSession":1,"sessionCapabilities":{"resume":false}}`, resume, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.continuing(tc.caps)
				r.handle("session/load", func(w wire) { r.send(old("x")); r.answer(w, `{}`) })
				r.handle("session/resume", func(w wire) { r.answer(w, `null`) })
				r.start()
				if got := r.methods(); !slices.Equal(got, tc.want) {
					t.Errorf("requests %v, want %v", got, tc.want)
				}
				info, id := r.s.Info(), map[bool]string{true: "s0", false: "s1"}[tc.resumed]
				if info.Resumed != tc.resumed || info.SessionContinuation != tc.resumed || info.Continuation == "" || r.s.ID() != id {
					t.Errorf("%q, %+v", r.s.ID(), info)
				}
			})
		})
	}
	t.Run("nothing to continue", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.continuing(canLoad)
			r.c.resume = ""
			r.start()
			if info := r.s.Info(); info.Resumed || !info.SessionContinuation || !slices.Equal(r.methods(), fresh) {
				t.Errorf("%+v, %v", info, r.methods())
			}
		})
	})
}

// TestFallback: whatever spoils a continuation costs the capability, and the
// session is a new one.
func TestFallback(t *testing.T) {
	refuse := func(code string) func(*stage, wire) {
		return func(r *stage, w wire) { r.refuse(w, `{"code":`+code+`,"message":"no"}`) }
	}
	silent := func(*stage, wire) {}
	unsound := func(r *stage, w wire) { r.send(`{"id":` + string(w.ID) + `}`) }
	overlong := func(r *stage, _ wire) { r.send(strings.Repeat("x", r.c.maxLine+1)) }
	accept := func(r *stage, w wire) { r.answer(w, `{}`) }
	tests := []struct {
		name          string
		control, then func(*stage, wire)
		took          time.Duration
		level         string
		skipped       bool // the continuation was not tried
	}{
		{"the same code from both", refuse("-32601"), refuse("-32601"), 0, "DEBUG", false},
		{"another code", refuse("-32601"), refuse("-32002"), 0, "WARN", false},
		{"the control succeeds", accept, refuse("-32601"), 0, "WARN", false},
		{"-32000", refuse("-32601"), refuse("-32000"), 0, "WARN", false},
		{"no answer to the control", silent, accept, 30 * time.Second, "WARN", true},
		{"no answer", refuse("-32601"), silent, 30 * time.Second, "WARN", false},
		{"an answer that is none", refuse("-32601"), unsound, 0, "WARN", false},
		{"a control's answer that is none", unsound, refuse("0"), 0, "WARN", false},
		{"a line over the bound", refuse("-32601"), overlong, 0, "WARN", false},
	}
	for _, tc := range tests {
		for caps, method := range map[string]string{canLoad: "session/load", canResume: "session/resume"} {
			t.Run(tc.name+", "+method, func(t *testing.T) {
				bubble(t, func(t *testing.T, r *stage) {
					r.continuing(caps)
					r.handle(controlMethod, func(w wire) { tc.control(r, w) })
					r.handle(method, func(w wire) { r.send(old("lost")); tc.then(r, w) })
					began := time.Now()
					r.start()
					wantTook(t, time.Since(began), tc.took)
					if info := r.s.Info(); r.s.ID() != "s1" || info.Resumed || info.SessionContinuation || info.Continuation == "" {
						t.Errorf("%q, %+v", r.s.ID(), info)
					}
					if n := r.log.count(tc.level+" agent d", "continu") + r.log.count(tc.level+" agent did not answer the negative control"); n != 1 {
						t.Errorf("%d records: %v", n, r.log.records)
					}
					if slices.Contains(r.methods(), method) == tc.skipped {
						t.Errorf("requests %v", r.methods())
					}
					o := r.turn(t.Context())
					for _, ev := range o.events {
						if strings.Contains(ev.Message, "lost") != (method == "session/resume" && ev.Message == "lost") {
							t.Errorf("%+v: what a load replayed in vain is dropped whole", ev)
						}
					}
					if got := o.show(); len(got) == 0 || got[0] != gapNotice("token counts, session continuation") {
						t.Errorf("events %v", got)
					}
				})
			})
		}
	}
}

// TestContinuationLost: a lost connection and the caller's context end the
// start, at each step.
func TestContinuationLost(t *testing.T) {
	for _, step := range []string{controlMethod, "session/load", "behind the load", "while it settles"} {
		set := func(r *stage, f func()) {
			r.continuing(canLoad)
			r.handle("session/load", func(w wire) {
				if step == "while it settles" {
					r.send(old("x"))
				}
				r.answer(w, `{}`)
				r.later(100*time.Millisecond, f)
			})
			if step == controlMethod || step == "session/load" {
				r.handle(step, func(wire) { r.later(100*time.Millisecond, f) })
			}
		}
		t.Run("an exit at "+step, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				set(r, func() { r.exit("exit status 5", 5) })
				wantError(t, r.tryStart(t.Context()), ErrPortExit, "exited before responding: exit status 5")
				if slices.Contains(r.methods(), "session/new") {
					t.Error("a new session was asked for")
				}
			})
		})
		t.Run("the context at "+step, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				why := errors.New("why")
				ctx, cancel := context.WithCancelCause(t.Context())
				set(r, func() { cancel(why) })
				err := r.tryStart(ctx)
				wantError(t, err, ErrTurnCancelled)
				if !errors.Is(err, why) {
					t.Errorf("%v does not unwrap to the cause", err)
				}
			})
		})
	}
	// The context ends behind the control, before the load is sent.
	bubble(t, func(t *testing.T, r *stage) {
		r.start()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, r.s.load(ctx, sessionParams{SessionID: "s0"}), ErrTurnCancelled)
		r.s.Info()
	})
}

// TestConfirmation: a load needs success and one replayed message chunk.
func TestConfirmation(t *testing.T) {
	const ms = time.Millisecond
	type at struct {
		when time.Duration
		line string
	}
	answer := "the answer"
	user := oldKind("user_message_chunk", userChunk)
	tests := []struct {
		name    string
		replay  []at // since the load was read
		resumed bool
		took    time.Duration
	}{
		{"before the answer", []at{{0, old("x")}, {100 * ms, answer}}, true, 350 * ms},
		{"after it", []at{{0, answer}, {5000 * ms, old("x")}}, true, 5250 * ms},
		{"partly after it", []at{{0, user}, {100 * ms, answer}, {200 * ms, old("x")}, {400 * ms, old("y")}}, true, 650 * ms},
		{"a user chunk is enough", []at{{0, answer}, {100 * ms, user}}, true, 350 * ms},
		{"any update holds it up", []at{{0, answer}, {100 * ms, user}, {300 * ms, oldKind("plan", `,"entries":[]`)}}, true, 550 * ms},
		{"250 ms of quiet end it", []at{{0, answer}, {100 * ms, user}, {350*ms + 1, user}}, true, 350 * ms},
		{"at the read timeout", []at{{0, answer}, {30_000*ms - 1, old("x")}}, true, 30_250*ms - 1},
		{"too late", []at{{0, answer}, {30_000*ms + 1, old("x")}}, false, 30_000 * ms},
		{"the answer too late", []at{{0, old("x")}, {30_000*ms + 1, answer}}, false, 30_000 * ms},
		{"nothing", []at{{0, answer}}, false, 30_000 * ms},
		{"no message", []at{{0, oldKind("tool_call", `,"toolCallId":"1","title":"t"`)}, {0, oldKind("agent_thought_chunk", userChunk)}, {1, answer}}, false, 30_000*ms + 1},
		{"another session's", []at{{0, updateOf("zz", `{"sessionUpdate":"user_message_chunk"`+userChunk+`}`)}, {1, answer}}, false, 30_000*ms + 1},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.continuing(canLoad)
				r.handle("session/load", func(w wire) {
					for _, a := range tc.replay {
						if a.line == answer {
							a.line = answerLine(w, `{}`)
						}
						r.later(a.when, func() { r.send(a.line) })
					}
				})
				began := time.Now()
				r.start()
				wantTook(t, time.Since(began), tc.took)
				if info := r.s.Info(); info.Resumed != tc.resumed || info.SessionContinuation != tc.resumed {
					t.Errorf("%+v", info)
				}
				if !tc.resumed && r.log.count("WARN agent did not continue the session") != 1 {
					t.Errorf("%v", r.log.records)
				}
			})
		})
	}
}

// TestSettling is bounded by the read timeout.
func TestSettling(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.continuing(canLoad)
		r.handle("session/load", func(w wire) {
			r.answer(w, `{}`)
			for i := range 1000 {
				r.later(time.Duration(i)*200*time.Millisecond, func() { r.send(old("x")) })
			}
		})
		began := time.Now()
		r.start()
		wantTook(t, time.Since(began), r.c.readTimeout)
	})
}

// TestReplay: of a confirmed load only the messages are kept, each with its own
// time, and none of it becomes part of the next turn's text.
func TestReplay(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.continuing(canLoad)
		began := time.Now()
		r.handle("initialize", func(w wire) { r.send("hello"); r.answer(w, r.caps) })
		r.handle("session/load", func(w wire) {
			say := func(n int, lines ...string) {
				r.later(time.Duration(n)*100*time.Millisecond, func() { r.send(lines...) })
			}
			say(1, oldKind("user_message_chunk", userChunk), old("a"), old("b"))
			say(2, oldKind("tool_call", `,"toolCallId":"1","title":"t"`), oldKind("tool_call_update", `,"toolCallId":"1","status":"completed"`),
				oldKind("plan", `,"entries":[]`), oldKind("agent_thought_chunk", userChunk), oldKind("party", ""))
			say(3, oldKind("user_message_chunk", userChunk), answerLine(w, `{}`))
			say(4, old("c"))
		})
		r.handle("session/prompt", func(w wire) {
			r.send(old("new"), oldKind("tool_call_update", `,"toolCallId":"1","status":"completed"`))
			r.stop(w, "end_turn")
		})
		r.start()
		o := r.turn(t.Context())
		o.wants(t, gapNotice("token counts"), noMessage, "notification ab", "notification c",
			alive, "notification new", "tool_result other 0s")
		for i, want := range map[int]time.Duration{2: 0, 3: 100 * time.Millisecond, 4: 400 * time.Millisecond} {
			if got := o.events[i].Time.Sub(began); got != want {
				t.Errorf("%q is of %v, want %v", o.events[i].Message, got, want)
			}
		}
	})
}

// TestDeadLoad: what an unconfirmed load goes on to replay is not ours.
func TestDeadLoad(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.continuing(canLoad)
		r.handle("session/load", func(w wire) { r.send(old("x")); r.refuse(w, `{"code":1,"message":"no"}`) })
		r.handle("session/new", func(w wire) {
			r.send(old("y"), update(`{"sessionUpdate":"plan","entries":[]}`))
			r.answer(w, `{"sessionId":"s1"}`)
			r.send(old("z"))
		})
		r.start()
		r.turn(t.Context()).wants(t, gapNotice("token counts, session continuation"), "other_message plan update")
	})
}

// TestHold: a load of a session that this process created waits until the UTC
// minute of its creation is over.
func TestHold(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name         string
		create, load time.Duration // behind a full minute
		want         time.Duration // how long the load is held
	}{
		{"from :00.000", 60 * s, 60 * s, 60 * s},
		{"from :59.999", 60*s - s/1000, 60*s - s/1000, s / 1000},
		{"from :00.000 to :59.999", 0, 60*s - s/1000, s / 1000},
		{"from :59.999 to :00.000", 60*s - s/1000, 60 * s, 0},
		{"from :30 to :45", 30 * s, 45 * s, 15 * s},
		{"from :30 to :10 of the next", 30 * s, 70 * s, 0},
	}
	type key struct{ adapter, workspace, id bool }
	run := func(t *testing.T, create, load time.Duration, same key) (held time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			a := &Adapter{}
			first := newStage(t, a)
			first.id = "s0"
			time.Sleep(create)
			first.start()
			time.Sleep(load - create)
			if !same.adapter {
				a = &Adapter{}
			}
			r := newStage(t, a)
			r.continuing(canLoad)
			if !same.id {
				r.c.resume = "s9"
			}
			if !same.workspace {
				r.c.workspace = t.TempDir()
			}
			r.handle("session/load", func(w wire) { r.send(strings.ReplaceAll(old("x"), "s0", r.c.resume)); r.answer(w, `{}`) })
			r.start()
			control, sent := r.sent(controlMethod)[0], r.sent("session/load")[0]
			held = sent.at.Sub(control.at)
			for _, r := range []*stage{first, r} {
				if err := r.s.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				r.close()
			}
		})
		return held
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			wantTook(t, run(t, tc.create, tc.load, key{true, true, true}), tc.want)
		})
	}
	for name, k := range map[string]key{
		"another process's": {false, true, true}, "another workspace's": {true, false, true}, "another id": {true, true, false},
	} {
		t.Run(name, func(t *testing.T) { wantTook(t, run(t, 0, 0, k), 0) })
	}
}

// TestHoldEnds: by the caller's context, and by a lost connection.
func TestHoldEnds(t *testing.T) {
	held := func(t *testing.T, f func(r *stage, cancel func()), kind ErrorKind) {
		bubble(t, func(t *testing.T, r *stage) {
			r.continuing(canLoad)
			r.a.created.Store(creation{r.c.workspace, "s0"}, time.Now())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r.later(10*time.Second, func() { f(r, cancel) })
			began := time.Now()
			wantError(t, r.tryStart(ctx), kind)
			wantTook(t, time.Since(began), 10*time.Second)
			if slices.Contains(r.methods(), "session/load") {
				t.Error("the load was sent")
			}
		})
	}
	held(t, func(_ *stage, cancel func()) { cancel() }, ErrTurnCancelled)
	held(t, func(r *stage, _ func()) { r.exit("exit status 1", 1) }, ErrPortExit)
}
