package acp

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWriteFailed is SPEC 3's row about a failed write.
func TestWriteFailed(t *testing.T) {
	deaf := func(r *stage) { r.stdin.set(func() { r.stdin.noReader = true }) }
	t.Run("no answer", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			r.later(10*time.Second, func() { r.send(chunk("still here")) })
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, "writing to the agent failed")
			wantTook(t, o.took, r.c.readTimeout)
			o.wants(t, "notification", "notification still here") // reading goes on meanwhile
		})
	})
	t.Run("an answer that still comes counts", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			r.later(r.c.readTimeout-1, func() { r.send(`{"id":3,"result":{"stopReason":"end_turn"}}`) })
			o := r.turn(t.Context())
			wantError(t, o.err, "")
			wantError(t, r.turn(t.Context()).err, ErrPortExit, "writing to the agent failed")
			<-r.s.Done() // the connection is given up all the same
		})
	})
	t.Run("the stream ends inside the read timeout", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			r.later(10*time.Second, func() { r.exit("exit status 6", 6) })
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, "the agent connection was lost: exit status 6")
			wantTook(t, o.took, 10*time.Second)
		})
	})
	t.Run("the exit follows the stream's end", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			r.later(r.c.readTimeout-1, r.hangUp)
			r.later(r.c.readTimeout+500*time.Millisecond, func() { r.exit("exit status 6", 6) })
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, "the agent connection was lost: exit status 6")
			wantTook(t, o.took, r.c.readTimeout+500*time.Millisecond)
		})
	})
	t.Run("a descendant writes on, and keeps standard error", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			r.signalled(func(bool) {})
			noise := `{"method":"_x/noise","params":"` + strings.Repeat("x", 10_000) + `"}`
			r.later(r.c.readTimeout-2*time.Second, func() { r.die("exit status 6", 6) })
			r.later(r.c.readTimeout-time.Second, func() { r.send(slices.Repeat([]string{noise}, drainMost/len(noise)+1)...) })
			r.later(r.c.readTimeout-1, func() { r.stdout.set(func() { r.stdout.noWriter = true }) })
			r.later(r.c.readTimeout+500*time.Millisecond, r.hangUp)
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, "the agent connection was lost: exit status 6")
			wantTook(t, o.took, r.c.readTimeout+500*time.Millisecond)
		})
	})
	// A consumer that holds the reader back holds this clock too.
	t.Run("a slow consumer", func(t *testing.T) {
		for _, answers := range []bool{true, false} {
			bubble(t, func(t *testing.T, r *stage) {
				r.begun(func(w wire) {
					r.send(chunk("x"))
					r.later(time.Second, func() { deaf(r); r.send(request("1", "fs/x", `{}`)) })
					r.later(10*time.Minute, func() { // long after the bound, had it not been held
						r.send(chunk("y"))
						if answers {
							r.stop(w, "end_turn")
							r.exit("exit status 0", 0)
						}
					})
				})
				held := false
				o := <-r.goTurn(t.Context(), func(ev Event) {
					if ev.Type == Notification && !held {
						held = true
						time.Sleep(time.Hour)
					}
				})
				if answers {
					wantError(t, o.err, "")
					return
				}
				wantError(t, o.err, ErrPortExit, "writing to the agent failed")
				wantTook(t, o.took, time.Hour+r.c.readTimeout)
			})
		}
	})
	t.Run("the turn is cancelled meanwhile", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			deaf(r)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o := r.turn(ctx)
			wantError(t, o.err, ErrTurnCancelled)
			wantTook(t, o.took, r.c.readTimeout)
		})
	})
}

const undrained = "the agent runtime exited before the session finished collecting its output"

// TestDrainBound: from an exit on, the end of the stream is awaited for 5 s.
func TestDrainBound(t *testing.T) {
	// A descendant outside the group holds the stream: no kill ends it.
	held := func(r *stage) { r.signalled(func(bool) {}) }
	given := func(t *testing.T, r *stage) {
		t.Helper()
		if n := r.log.count("WARN "+msgUndrained, "drain_bound=5s"); n != 1 {
			t.Errorf("%d warnings", n)
		}
		wantError(t, r.turn(t.Context()).err, ErrPortExit, undrained)
	}
	t.Run("in a turn", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(wire) { held(r); r.send(chunk("x")); r.die("exit status 0", 0) })
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, undrained)
			wantTook(t, o.took, 5*time.Second)
			o.wants(t, "notification", "notification x")
			given(t, r)
			if order := r.noted(); order[0] != "kill" || order[1] != "reaped" {
				t.Errorf("at the exit: %v", order)
			}
		})
	})
	t.Run("between turns", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			held(r)
			r.die("exit status 0", 0)
			time.Sleep(5*time.Second - 1)
			synctest.Wait()
			if r.log.count(msgUndrained) > 0 {
				t.Error("given up before the bound")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			given(t, r)
		})
	})
	t.Run("a descendant that keeps writing", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(wire) {
				held(r)
				r.die("exit status 0", 0)
				for i := range 100 {
					r.later(time.Duration(i)*100*time.Millisecond, func() { r.send(chunk("x")) })
				}
			})
			o := r.turn(t.Context())
			wantError(t, o.err, ErrPortExit, undrained)
			wantTook(t, o.took, 5*time.Second)
			given(t, r)
		})
	})
	t.Run("the stream ends just in time", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(w wire) {
				held(r)
				r.die("exit status 0", 0)
				r.later(5*time.Second-1, func() { r.stop(w, "end_turn"); r.hangUp() })
			})
			wantError(t, r.turn(t.Context()).err, "")
			if r.log.count(msgUndrained) > 0 {
				t.Error("given up")
			}
		})
	})
	t.Run("a turn cancelled meanwhile", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(w wire) { held(r); r.die("exit status 0", 0) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o := r.turn(ctx)
			wantError(t, o.err, ErrTurnCancelled)
			wantTook(t, o.took, 5*time.Second)
		})
	})
	// A consumer that holds the reader back holds the clock too.
	t.Run("a slow consumer", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			const chunks = 2000 // about 256 KiB, 20 s
			r.begun(func(w wire) {
				held(r)
				r.send(strings.Repeat(chunk("x")+"\n", chunks))
				r.stop(w, "end_turn")
				r.die("exit status 0", 0)
			})
			o := <-r.goTurn(t.Context(), func(Event) { time.Sleep(10 * time.Millisecond) })
			wantError(t, o.err, "")
			if o.took < chunks*10*time.Millisecond || len(o.events) != chunks+3 {
				t.Errorf("%d events in %v", len(o.events), o.took)
			}
		})
	})
	t.Run("a consumer that pauses", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(func(w wire) {
				held(r)
				r.die("exit status 0", 0)
				r.send(chunk("x"))
				r.later(time.Second, func() { r.send(chunk("y")) }) // 1 s of the clock; from here on it is held
			})
			paused := false
			o := <-r.goTurn(t.Context(), func(ev Event) {
				if ev.Type == Notification && !paused {
					paused = true
					time.Sleep(time.Hour)
				}
			})
			wantError(t, o.err, ErrPortExit, undrained)
			wantTook(t, o.took, time.Hour+4*time.Second)
		})
	})
}

const msgUndrained = "agent stdout was not fully collected before the session ended"

// TestOverlong: a line over the bound costs its turn and nothing more.
func TestOverlong(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	for _, tc := range []struct {
		name string
		n    int
		crlf string
		over bool
	}{
		{"at the bound", bound, "", false}, {"at the bound with a carriage return", bound, "\r", false},
		{"over it", bound + 1, "", true}, {"far over it", 5 * bound, "", true},
	} {
		line := `{"jsonrpc":"2.0","method":"x","params":"` + strings.Repeat("x", tc.n-42) + `"}` + tc.crlf
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				var prompt wire
				r.begun(func(w wire) {
					prompt = w
					r.send(line, chunk("on"))
					if !tc.over {
						r.stop(w, "end_turn")
					}
				})
				r.handle("session/cancel", func(wire) { r.stop(prompt, "cancelled") })
				o := r.turn(t.Context())
				if tc.over {
					wantError(t, o.err, ErrTurnOutcomeUnknown)
				} else {
					wantError(t, o.err, "")
				}
				o.wants(t, "notification", "notification on")
				r.send(line) // between turns
				synctest.Wait()
				r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
				if o = r.turn(t.Context()); tc.over {
					o.wants(t, "malformed "+msgNotRPC)
				} else {
					o.wants(t)
				}
				wantError(t, o.err, "")
			})
		})
	}
}

// TestOverlongAnswer: the line over the bound was the answer itself. The next turn
// waits for another as for any open prompt, and then works.
func TestOverlongAnswer(t *testing.T) {
	for _, between := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *stage) {
			long := strings.Repeat("x", r.c.maxLine+1)
			cause := ErrTurnOutcomeUnknown
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r.begun(func(wire) {
				if between {
					cancel()
				} else {
					r.send(long)
				}
			})
			if between {
				cause = ErrTurnCancelled
			}
			o := r.turn(ctx)
			wantError(t, o.err, cause)
			wantTook(t, o.took, r.c.readTimeout)
			if between {
				r.send(long)
				synctest.Wait()
			}
			r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
			o = r.turn(t.Context())
			wantError(t, o.err, "")
			wantTook(t, o.took, r.c.readTimeout)
			o = r.turn(t.Context())
			wantError(t, o.err, "")
			wantTook(t, o.took, 0)
			r.handle("session/prompt", func(wire) {})
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wantError(t, r.turn(ctx).err, ErrTurnCancelled)
			wantError(t, r.turn(t.Context()).err, ErrResponseTimeout) // no line over the bound since
		})
	}
}

// TestBacklog: exactly 4 MiB of answers may wait, and a prompt is not counted.
func TestBacklog(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *stage) {
		answer := len(encodeError(value(floodID), methodNotFound, "method not found"))
		r.begun(nil)
		r.stdin.set(func() { r.stdin.stuck, r.stdin.room = true, 10 })
		fits := maxBacklog/answer + 1 // and one that the writer has
		r.send(flood(fits))
		synctest.Wait()
		r.prompt = strings.Repeat("x", 2*answer)
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		select {
		case <-r.s.Done():
			t.Fatal("the connection was given up too early")
		case <-over:
			t.Fatal("the turn was given up too early")
		default:
		}
		r.send(flood(1))
		o := <-over
		wantError(t, o.err, ErrPortExit, "the agent does not read what it is sent")
		for range 2 { // nor does what it goes on to ask for add up
			r.send(flood(fits / 4 * 3))
			synctest.Wait()
			waiting := 0
			if r.look(func(l *loop) { waiting = l.outBytes }); waiting > maxBacklog {
				t.Errorf("%d bytes wait", waiting)
			}
		}
	})
}

// TestCloseBehindGiveUp: SPEC 10's list runs in full on a connection given up.
func TestCloseBehindGiveUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(wire) {
			r.asksInVain()
			r.later(time.Second, func() { r.stdin.set(func() { r.stdin.stuck = false }) })
		})
		wantError(t, r.turn(t.Context()).err, ErrPortExit, "does not read")
		<-r.s.Done()
		if len(r.sent("session/close")) != 1 {
			t.Error("the session was not closed")
		}
	})
}

// TestUnwrittenPrompt: a prompt that waits while its turn is lost never goes out.
func TestUnwrittenPrompt(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(nil)
		r.stubborn()
		r.stdin.set(func() { r.stdin.stuck, r.stdin.room = true, 10 })
		r.send(flood(2))
		synctest.Wait()
		r.later(2*time.Second, func() { r.stdin.set(func() { r.stdin.stuck = false }) })
		r.later(time.Millisecond, func() { r.stdout.set(func() { r.stdout.noWriter = true }) })
		wantError(t, r.turn(t.Context()).err, ErrPortExit)
		<-r.s.Done()
		if len(r.sent("")) != 2 || len(r.sent("session/prompt")) != 0 {
			t.Errorf("%d answers, %d prompts", len(r.sent("")), len(r.sent("session/prompt")))
		}
	})
}

// TestBacklogDrains: what was read does not count.
func TestBacklogDrains(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.stop(w, "end_turn") })
		for range 5 {
			r.send(flood(1000))
			synctest.Wait()
		}
		wantError(t, r.turn(t.Context()).err, "")
	})
}

// TestLargePromptNoDeadlock: the prompt is larger than the pipe while the
// runtime is itself writing and does not read before it has written.
func TestLargePromptNoDeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.stop(w, "end_turn") })
		r.stdin.set(func() { r.stdin.stuck = true })
		r.stdout.set(func() { r.stdout.room = 4 << 10 })
		go func() { // ends with the test: all it writes is read
			out := end{pipe: r.stdout}
			if _, err := out.Write([]byte(strings.Repeat(chunk("x")+"\n", 2000))); err != nil {
				t.Error(err)
			}
			r.stdout.set(func() { r.stdout.room = noLimit })
			r.stdin.set(func() { r.stdin.stuck = false })
		}()
		res, err := r.s.RunTurn(t.Context(), strings.Repeat("x", 2<<20), nil)
		wantError(t, err, "")
		if res.ExitReason != TurnCompleted || len(r.sent("session/prompt")[0].raw) < 2<<20 {
			t.Errorf("%+v", res)
		}
	})
}

// TestBlockedConsumer: all else works while onEvent does not return.
func TestBlockedConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(func(w wire) { r.send(strings.Repeat(chunk("x")+"\n", 5000)) })
		release := make(chan struct{})
		over := r.goTurn(t.Context(), func(ev Event) {
			if ev.Type == Notification {
				<-release
			}
		})
		synctest.Wait()
		if n := len(r.stdout.data); n < 3000*len(chunk("x")) {
			t.Errorf("%d bytes are left: the runtime is not held back", n)
		}
		r.s.Info()
		began := time.Now()
		if err := r.s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		wantTook(t, time.Since(began), 0)
		close(release)
		o := <-over
		wantError(t, o.err, ErrTurnCancelled)
		if n := r.count(o, "events were dropped between turns"); n != 1 {
			t.Errorf("%d notices of dropped events", n)
		}
		if n := len(o.events); n > queueBound+2*eventBatch+10 {
			t.Errorf("%d events were kept", n)
		}
	})
}

// TestTextIsBounded: what a cancelled turn brings to a consumer that blocks.
func TestTextIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.c.chunkText = true
		big := strings.Repeat("x", 256<<10)
		const chunks = 40
		r.begun(func(wire) {
			r.send(chunk("x"))
			r.later(2*time.Second, func() { r.send(strings.Repeat(chunk(big)+"\n", chunks) + chunk("the last")) })
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		held, text := false, 0
		o := <-r.goTurn(ctx, func(ev Event) {
			if text += len(ev.Text); ev.Text == "x" && !held {
				held = true
				time.Sleep(r.c.readTimeout * 2)
			}
		})
		wantError(t, o.err, ErrTurnCancelled)
		// The first waits for the consumer, the others in the queue.
		if most := 4*r.c.maxLine + len(big) + 100; text > most || text < most-2*len(big) {
			t.Errorf("%d bytes of text, want up to %d", text, most)
		}
		if o.events[len(o.events)-3].Text != "the last" || r.count(o, "events were dropped between turns") != 1 {
			t.Errorf("%d events, %d notices", len(o.events), r.count(o, "events were dropped between turns"))
		}
	})
}

// count returns how many events hold that text.
func (r *stage) count(o outcome, text string) (n int) {
	for _, ev := range o.events {
		if strings.Contains(ev.Message, text) {
			n++
		}
	}
	return n
}

// slowGauge has its figure after a while.
type slowGauge struct{ from time.Time }

func (slowGauge) open(string, []string) {}
func (slowGauge) discard() error        { return nil }
func (slowGauge) readOther() figure     { return figure{} }

func (g slowGauge) read() figure {
	if time.Now().Before(g.from) {
		return figure{}
	}
	return figure{input: 7, output: 5, plain: 12, model: "m"}
}

// TestUsageWait: it is the turn's last act, and a cancellation then ends it
// and nothing else.
func TestUsageWait(t *testing.T) {
	answer := `{"stopReason":"end_turn","_meta":{"quota":{"token_count":{"input_tokens":7,"output_tokens":5}}}}`
	tests := []struct {
		name   string
		figure time.Duration // when it is there
		cancel time.Duration
		stop   bool
		took   time.Duration
		want   string
	}{
		{"the figure comes", 2 * time.Second, time.Hour, false, 2 * time.Second, "token_usage"},
		{"it does not", time.Hour, 2 * time.Hour, false, 6 * time.Second, ""},
		{"the context ends the wait", time.Hour, time.Second, false, time.Second, ""},
		{"Stop ends the wait", time.Hour, time.Second, true, time.Second, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.begun(func(w wire) { r.answer(w, answer) })
				r.look(func(*loop) {
					r.s.meter = &meter{gauge: slowGauge{time.Now().Add(tc.figure)}, delay: 6 * time.Second}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r.later(tc.cancel, func() {
					if tc.stop {
						_ = r.s.Stop(context.Background())
					}
					cancel()
				})
				over := r.goTurn(ctx, nil)
				synctest.Wait()
				wantError(t, r.turn(t.Context()).err, ErrResponseError, "in flight") // it still is
				o := <-over
				wantError(t, o.err, "")
				wantTook(t, o.took, tc.took)
				if tc.want != "" {
					o.wants(t, tc.want)
				} else {
					o.wants(t)
				}
				if o.res.Measured != (tc.want != "") {
					t.Errorf("%+v", o.res)
				}
			})
		})
	}
}

// TestCallbackUnwinds: a panic and a Goexit in onEvent pass through RunTurn,
// and the turn is cancelled behind them.
func TestCallbackUnwinds(t *testing.T) {
	for name, unwind := range map[string]func(){"panic": func() { panic("oh") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				var prompt wire
				r.began(func(w wire) { prompt = w; r.send(chunk("x")) })
				r.handle("session/cancel", func(wire) { r.stop(prompt, "cancelled") })
				unwound := make(chan any, 1)
				go func() {
					defer func() { unwound <- recover() }()
					_, _ = r.s.RunTurn(t.Context(), "do it", func(ev Event) {
						if ev.Type == Notification && ev.Message == "" {
							unwind()
						}
					})
				}()
				if v := <-unwound; (v == "oh") != (name == "panic") {
					t.Errorf("recovered %v", v)
				}
				synctest.Wait()
				if len(r.sent("session/cancel")) != 1 {
					t.Error("the turn was not cancelled")
				}
				r.handle("session/prompt", func(w wire) { r.stop(w, "end_turn") })
				wantError(t, r.turn(t.Context()).err, "")
			})
		})
	}
}
