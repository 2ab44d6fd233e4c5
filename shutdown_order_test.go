package acp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stubborn makes a process that only a kill ends.
func (r *stage) stubborn() {
	r.signalled(func(kill bool) {
		if kill {
			r.exit("signal: killed", -1)
		}
	})
}

func (r *stage) wantOrder(want ...string) {
	r.t.Helper()
	r.compare(r.noted(), want)
}

func (r *stage) compare(got, want []string) {
	r.t.Helper()
	if !closeUnblocks { // the writer closes it, and nobody waits for that
		got, want = behind(got, "stdin closed"), behind(want, "stdin closed")
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("the order was\n %s, want\n %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// behind returns list with step moved to its end.
func behind(list []string, step string) []string {
	i := slices.Index(list, step)
	if i < 0 {
		return list
	}
	return append(slices.Delete(slices.Clone(list), i, i+1), step)
}

// stopped stops the session and returns how long that took.
func (r *stage) stopped(ctx context.Context) time.Duration {
	r.t.Helper()
	began := time.Now()
	if err := r.s.Stop(ctx); err != nil {
		r.t.Error(err)
	}
	return time.Since(began)
}

const forced = "WARN agent did not exit inside the graceful period and was force-terminated"

// TestTeardown is SPEC 10's list, its bounds and its warning.
func TestTeardown(t *testing.T) {
	steps := []string{"session/close", "terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed"}
	silent := func(r *stage) { r.handle("session/close", nil) }
	tests := []struct {
		name  string
		setUp func(r *stage)
		took  time.Duration
		warn  string
	}{
		{"a runtime that obeys", func(*stage) {}, 0, ""},
		{"it ends at the end of its input", func(r *stage) {
			r.stubborn()
			r.later(0, func() {
				r.stdin.mu.Lock()
				for !r.stdin.noWriter {
					r.stdin.change.Wait()
				}
				r.stdin.mu.Unlock()
				time.Sleep(time.Second)
				r.exit("exit status 0", 0)
			})
		}, time.Second, ""},
		{"it ignores both", func(r *stage) { r.stubborn() }, 5 * time.Second, "outcome=grace elapsed grace=5s"},
		{"no answer to session/close", silent, 2500 * time.Millisecond, ""},
		{"neither", func(r *stage) { r.stubborn(); silent(r) }, 5 * time.Second, "outcome=grace elapsed"},
		{"a wrapper ends at once, the runtime 400 ms later", func(r *stage) {
			r.signalled(func(kill bool) {
				if !kill {
					r.die("signal: terminated", -1)
					r.later(400*time.Millisecond, r.hangUp)
				}
			})
		}, 400 * time.Millisecond, ""},
		{"the stream ends and the leader lives on", func(r *stage) {
			r.signalled(func(kill bool) {
				r.hangUp()
				if kill {
					r.die("signal: killed", -1)
				}
			})
		}, 5 * time.Second, "outcome=grace elapsed"},
		{"standard error is held open", func(r *stage) {
			r.signalled(func(kill bool) {
				r.stdout.set(func() { r.stdout.noWriter = true })
				r.die("signal: terminated", -1)
			})
		}, 2 * time.Second, ""},
		{"everything is held open", func(r *stage) {
			r.signalled(func(kill bool) { r.die("signal: terminated", -1) })
		}, 7 * time.Second, "outcome=grace elapsed"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.start()
				tc.setUp(r)
				synctest.Wait()
				wantTook(t, r.stopped(t.Context()), tc.took)
				r.wantOrder(steps...)
				n := r.log.count(forced)
				if (n == 1) != (tc.warn != "") || n != r.log.count(forced, tc.warn) {
					t.Errorf("warnings: %v", r.log.records)
				}
			})
		})
	}
}

// TestTeardownOfATurn: step 1 carries the turn's session/cancel and every
// answer, also to a runtime that reads late.
func TestTeardownOfATurn(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var prompt wire
		r.begun(func(w wire) { prompt = w })
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		r.stdin.set(func() { r.stdin.stuck, r.stdin.room = true, 10 })
		r.send(asksFor("1", ""), request("2", "fs/x", `{}`))
		synctest.Wait()
		r.later(time.Second, func() { r.stdin.set(func() { r.stdin.stuck = false }) })
		r.handle("session/cancel", func(w wire) { r.stop(prompt, "cancelled") })
		wantTook(t, r.stopped(t.Context()), time.Second)
		o := <-over
		wantError(t, o.err, ErrTurnCancelled)
		if o.res.StopReason != "cancelled" {
			t.Errorf("%+v", o.res)
		}
		if got := r.methods(); !slices.Equal(got, []string{"session/new", "session/prompt", "session/cancel", "session/close"}) || len(r.sent("")) != 2 {
			t.Errorf("requests %v, answers %v", got, r.sent(""))
		}
	})
	// Half of the window for a runtime that does not read, half of the rest for
	// session/close.
	bubble(t, func(t *testing.T, r *stage) {
		r.begun(nil)
		r.stubborn()
		r.stdin.set(func() { r.stdin.stuck, r.stdin.room = true, 10 })
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		began := time.Now()
		var told time.Duration
		r.signalled(func(kill bool) {
			if told == 0 {
				told = time.Since(began)
			}
			if kill {
				r.exit("signal: killed", -1)
			}
		})
		wantTook(t, r.stopped(t.Context()), r.c.grace)
		wantTook(t, told, 3750*time.Millisecond)
		wantError(t, (<-over).err, ErrTurnCancelled)
	})
}

// TestRequestsDuringTeardown are answered: cancelled, or not found.
func TestRequestsDuringTeardown(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.start()
		r.handle("session/close", func(w wire) {
			r.send(asksFor("1", ""), request("2", "elicitation/create", `{}`), request("3", "fs/x", `{}`))
			r.later(time.Second, func() { r.answer(w, `{}`) })
		})
		wantTook(t, r.stopped(t.Context()), time.Second)
		var got []string
		for _, w := range r.sent("") {
			got = append(got, strings.TrimPrefix(w.raw, `{"jsonrpc":"2.0","id":`))
		}
		if want := []string{"1," + wasCancelled, "2," + wasRefused, "3," + wasRefused}; !slices.Equal(got, want) {
			t.Errorf("answers %v", got)
		}
	})
}

// TestTeardownElsewhere: each step is safe on a session that is half started,
// lost or given up.
func TestTeardownElsewhere(t *testing.T) {
	t.Run("nothing was answered", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.handle("initialize", nil)
			wantError(t, r.tryStart(t.Context()), ErrResponseTimeout)
			r.wantOrder("terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("no session", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.handle("session/new", nil)
			wantError(t, r.tryStart(t.Context()), ErrResponseTimeout)
			r.wantOrder("terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("the process is gone", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.exit("exit status 1", 1)
			<-r.s.Done() // it tears itself down
			// The group is killed at the exit, the leader unreaped; no signal after.
			r.wantOrder("kill", "reaped", "stdin closed", "stdout closed", "stderr closed")
			wantTook(t, r.stopped(t.Context()), 0)
		})
	})
	t.Run("the stream is gone", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.stubborn()
			r.hangUp()
			began := time.Now()
			<-r.s.Done()
			wantTook(t, time.Since(began), time.Second+r.c.grace)
			r.wantOrder("terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("the stream was given up", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.signalled(func(bool) {})
			r.die("exit status 1", 1)
			began := time.Now()
			<-r.s.Done()
			wantTook(t, time.Since(began), 7*time.Second) // 2 s for standard error
			r.wantOrder("kill", "reaped", "stdin closed", "stdout closed", "stderr closed")
			if r.log.count(forced) != 0 {
				t.Error("it had exited")
			}
		})
	})
	t.Run("the connection was given up", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.stubborn()
			r.asksInVain()
			began := time.Now()
			<-r.s.Done()
			wantTook(t, time.Since(began), r.c.grace)
			r.wantOrder("terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("a write failed", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.began(nil)
			r.stdin.set(func() { r.stdin.noReader = true })
			wantError(t, r.turn(t.Context()).err, ErrPortExit)
			<-r.s.Done()
			r.wantOrder("stdin closed", "terminate", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("a write fails during it", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.handle("session/close", func(wire) { r.stdin.set(func() { r.stdin.noReader = true }); r.send(asksFor("1", "")) })
			wantTook(t, r.stopped(t.Context()), 0)
			// The writer closes it when it has told of the failure.
			r.compare(behind(r.noted(), "stdin closed"),
				[]string{"session/close", "terminate", "kill", "stdout closed", "reaped", "stderr closed", "stdin closed"})
		})
	})
	t.Run("it exits during it", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.handle("session/close", func(wire) { r.exit("exit status 0", 0) })
			wantTook(t, r.stopped(t.Context()), 0)
			r.wantOrder("session/close", "terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		})
	})
	t.Run("it floods during it", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.stubborn()
			r.handle("session/close", func(wire) {
				for i := range 1000 {
					r.later(time.Duration(i)*10*time.Millisecond, func() { r.send(chunk("x"), "garbage", asksFor("1", "")) })
				}
			})
			wantTook(t, r.stopped(t.Context()), r.c.grace)
		})
	})
}

// TestHurriedStop: the end of any Stop's context shortens the graceful part.
func TestHurriedStop(t *testing.T) {
	setUp := func(t *testing.T, f func(r *stage)) {
		bubble(t, func(t *testing.T, r *stage) {
			r.start()
			r.stubborn()
			f(r)
			if n := r.log.count(forced, "outcome=caller deadline"); n != 1 || n != r.log.count(forced) {
				t.Errorf("%v", r.log.records)
			}
		})
	}
	ctx := func(r *stage, d time.Duration) context.Context {
		c, cancel := context.WithTimeout(r.t.Context(), d)
		r.t.Cleanup(cancel)
		return c
	}
	t.Run("of the first", func(t *testing.T) {
		setUp(t, func(r *stage) { wantTook(r.t, r.stopped(ctx(r, time.Second)), time.Second) })
	})
	t.Run("of a later one", func(t *testing.T) {
		setUp(t, func(r *stage) {
			var first time.Duration
			var wg sync.WaitGroup
			wg.Go(func() { first = r.stopped(context.Background()) })
			time.Sleep(time.Second)
			wantTook(r.t, r.stopped(ctx(r, time.Second)), time.Second)
			wg.Wait()
			wantTook(r.t, first, 2*time.Second)
		})
	})
	t.Run("the kill is waited for all the same", func(t *testing.T) {
		setUp(t, func(r *stage) {
			r.signalled(func(kill bool) {
				if kill {
					r.later(time.Second, func() { r.exit("signal: killed", -1) })
				}
			})
			wantTook(r.t, r.stopped(ctx(r, time.Second)), 2*time.Second)
		})
	})
	t.Run("done at the call", func(t *testing.T) {
		setUp(t, func(r *stage) {
			wantTook(r.t, r.stopped(ctx(r, 0)), 0)
			// It may be out before the context is seen, and be read at any time.
			got := slices.DeleteFunc(r.noted(), func(step string) bool { return step == "session/close" })
			r.compare(got, []string{"terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed"})
		})
	})
}

// TestKillOutlived: the process survives even the kill. Stop says so inside its
// bound and leaves the waiter behind.
func TestKillOutlived(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.began(nil)
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		r.signalled(func(bool) {})
		began := time.Now()
		wantError(t, r.s.Stop(t.Context()), ErrPortExit, "outlived its kill")
		wantTook(t, time.Since(began), r.c.grace+2*time.Second)
		wantError(t, (<-over).err, ErrTurnCancelled)
		wantError(t, r.s.Stop(t.Context()), ErrPortExit)
		if n := r.log.count("ERROR agent process outlived its kill"); n != 1 {
			t.Errorf("%d records", n)
		}
		r.s = nil
	})
}

// stuckGauge has a directory that cannot be removed, or not soon.
type stuckGauge struct {
	slowGauge
	err   error
	after time.Duration
}

func (g stuckGauge) discard() error {
	time.Sleep(g.after)
	return g.err
}

// TestDiscard: a directory for usage figures that stays is what Stop says.
func TestDiscard(t *testing.T) {
	for _, tc := range []struct {
		gauge stuckGauge
		took  time.Duration
		text  string
	}{
		{stuckGauge{after: time.Second - 1}, time.Second - 1, ""},
		{stuckGauge{err: errors.New("in use")}, 0, "was not removed: in use"},
		{stuckGauge{after: time.Minute}, time.Second, "takes too long"},
	} {
		bubble(t, func(t *testing.T, r *stage) {
			r.begun(nil)
			r.look(func(*loop) { r.s.meter = &meter{gauge: tc.gauge} })
			began := time.Now()
			kind := ErrPortExit
			if tc.text == "" {
				kind = ""
			}
			wantError(t, r.s.Stop(t.Context()), kind, tc.text)
			wantTook(t, time.Since(began), tc.took)
			r.s = nil
			time.Sleep(tc.gauge.after) // the removal is not ours to end
		})
	}
}

// TestConcurrentStops share one teardown.
func TestConcurrentStops(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.began(nil)
		r.stubborn()
		over := r.goTurn(t.Context(), nil)
		synctest.Wait()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { wantTook(t, r.stopped(context.Background()), r.c.grace) })
		}
		wg.Wait()
		wantError(t, (<-over).err, ErrTurnCancelled)
		r.wantOrder("session/close", "terminate", "stdin closed", "kill", "stdout closed", "reaped", "stderr closed")
		wantTook(t, r.stopped(t.Context()), 0)
	})
}

// TestStopInsideOnEvent works at any event, the last included.
func TestStopInsideOnEvent(t *testing.T) {
	for _, at := range []EventType{SessionStarted, Notification, TurnCompleted} {
		bubble(t, func(t *testing.T, r *stage) {
			r.began(func(w wire) { r.send(chunk("x")); r.stop(w, "end_turn") })
			stopped := 0
			o := <-r.goTurn(t.Context(), func(ev Event) {
				if ev.Type == at {
					stopped++
					r.stopped(context.Background())
				}
			})
			if e := o.err; e != nil {
				wantError(t, e, ErrTurnCancelled)
			}
			if stopped == 0 || at == TurnCompleted && o.err != nil {
				t.Errorf("stopped %d times at %s: %v", stopped, at, o.err)
			}
		})
	}
}

// TestAfterDone: what may be called at any time.
func TestAfterDone(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.start()
		r.stopped(t.Context())
		if r.s.ID() != "s1" || r.s.PID() != 4711 || r.s.Info().AgentName != "peer" {
			t.Errorf("%q %d %+v", r.s.ID(), r.s.PID(), r.s.Info())
		}
	})
}
