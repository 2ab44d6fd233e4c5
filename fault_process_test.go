//go:build linux

package acp_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// The faults of processes: stopped ones, descendants, what escapes and what
// others do to them. They need to look at processes, so they run on Linux alone.

// TestStopped: a runtime that was stopped is told to end, and its own handler of
// the graceful signal runs.
func TestStopped(t *testing.T) {
	cancelled := exactly(want{kind: acp.ErrTurnCancelled}, turnBound+readBound)
	half := want{from: graceBound, to: graceBound + 100*time.Millisecond} // session/close is not answered, then the handler works
	var rows []fault
	add := func(name string, f fault) {
		marker := filepath.Join(t.TempDir(), "marker")
		f.name, f.after = name, func(r *faultRun) {
			if _, err := os.Stat(marker); err != nil {
				r.Errorf("the handler did not run: %v", err)
			}
			r.wantForced("")
		}
		f.steps = append([]string{`{"on_term_ms":100,"path":` + quoteJSON(marker) + `}`}, f.steps...)
		rows = append(rows, f)
	}
	const stop = `{"stop_self":true}`
	add("before initialize", fault{config: noHandshake, steps: []string{stop, idle},
		start: want{kind: acp.ErrResponseTimeout, text: "initialize", from: handshakeBound + 100*time.Millisecond, to: handshakeBound + 100*time.Millisecond}})
	add("before the turn", fault{steps: []string{initialized, created, stop, idle}, cancel: turnBound, turn: cancelled, stop: half})
	add("in the turn", fault{steps: []string{prompted, send(chunk("x")), stop, idle}, cancel: turnBound, turn: cancelled, stop: half})
	add("behind the turn", fault{steps: []string{prompted, ended, stop, idle}, stop: half})
	add("by somebody else", fault{steps: []string{prompted, ended, idle}, stop: half, then: func(r *faultRun) {
		if err := syscall.Kill(r.s.PID(), syscall.SIGSTOP); err != nil {
			r.Error(err)
		}
	}})
	runFaults(t, rows, func(c *acp.Config) { silent(c); c.StopGrace = 2 * graceBound })
}

// TestDescendants: what the runtime has started holds its streams, in its group
// or out of it.
func TestDescendants(t *testing.T) {
	lost := want{kind: acp.ErrPortExit, text: "the agent connection was lost: exit status 3", to: time.Second}
	undrained := exactly(want{kind: acp.ErrPortExit,
		text: "the agent runtime exited before the session finished collecting its output"}, 5*time.Second)
	flooded := undrained
	flooded.to += 2 * time.Second
	early := want{kind: acp.ErrPortExit, text: "exited before responding: exit status 3"}
	spawn := func(holds, where string) string { return `{"spawn_holder":60` + holds + where + `}` }
	warned := func(r *faultRun) {
		if got := r.log.find(msgUndrained); len(got) != 1 || got[0].attrs["drain_bound"] != "5s" {
			r.Errorf("undrained: %v", got)
		}
		r.killHolder()
	}
	const out, errs, apart = `,"holds":"stdout"`, `,"holds":"stderr"`, `,"escape":true`
	var rows []fault
	for what, holds := range map[string]string{"both": "", "stdout": out, "stderr": errs} {
		rows = append(rows,
			// Of the group: it is killed with it.
			fault{name: "group, " + what + ", exit", steps: []string{prompted, spawn(holds, ""), `{"exit":3}`}, turn: lost},
			fault{name: "group, " + what + ", stop", steps: []string{prompted, spawn(holds, ""), ended, idle}, stop: exactly(want{}, graceBound/2)},
			fault{name: "group, " + what + ", start", steps: []string{spawn(holds, ""), `{"exit":3}`}, start: early},
			fault{name: "group, " + what + ", killed", steps: []string{prompted, spawn(holds, ""), killed},
				turn: want{kind: acp.ErrPortExit, text: "the agent connection was lost: signal: killed", to: time.Second}},
		)
		if holds == errs {
			continue
		}
		rows = append(rows,
			fault{name: "escaped, " + what + ", exit", steps: []string{prompted, send(chunk("x")), spawn(holds, apart), `{"exit":3}`},
				turn: undrained, then: func(r *faultRun) { <-r.s.Done(); r.wantRefused(want{kind: acp.ErrPortExit, text: undrained.text}) }, after: warned},
			fault{name: "escaped, " + what + ", final answer", steps: []string{prompted, spawn(holds, apart), ended, `{"exit":3}`},
				then:  func(r *faultRun) { <-r.s.Done(); r.wantRefused(want{kind: acp.ErrPortExit, text: undrained.text}) },
				after: warned},
			// It is not the exit that is awaited but the end of the stream.
			fault{name: "escaped, " + what + ", stop", steps: []string{prompted, spawn(holds, apart), ended, idle},
				stop:  exactly(want{}, graceBound+map[string]time.Duration{"both": 2 * time.Second}[what]), // 2 s for standard error
				after: func(r *faultRun) { r.wantForced("grace elapsed"); r.killHolder() }},
		)
	}
	startBounds := map[string]time.Duration{"": 7 * time.Second, out: 5 * time.Second, errs: 7 * time.Second} // 2 s for standard error
	for holds, bound := range startBounds {
		rows = append(rows, fault{name: "escaped, start" + holds, steps: []string{spawn(holds, apart), `{"exit":3}`},
			config: func(*acp.Config) {}, start: exactly(early, bound),
			after: func(r *faultRun) { r.killHolder() }})
	}
	rows = append(rows,
		fault{name: "escaped, stderr, exit", steps: []string{prompted, spawn(errs, apart), `{"exit":3}`},
			turn:  exactly(want{kind: acp.ErrPortExit, text: "the agent connection was lost: exit status 3"}, time.Second), // for the end of standard error
			after: func(r *faultRun) { r.killHolder() }},
		fault{name: "escaped, stderr, stop", steps: []string{prompted, spawn(errs, apart), ended, idle},
			stop: exactly(want{}, graceBound/2+2*time.Second), after: func(r *faultRun) { r.killHolder() }},
		fault{name: "escaped writer", steps: []string{prompted, `{"spawn_writer":9,"gap_ms":10,"escape":true,"line":` + quoteJSON(chunk("x")) + `}`, `{"exit":3}`},
			turn: flooded, after: func(r *faultRun) { r.awaitGone(10 * time.Second) }},
		// The clock stands until the consumer has had what the runtime may have left.
		fault{name: "escaped writer at full speed", steps: []string{prompted,
			`{"spawn_writer":9,"escape":true,"line":` + quoteJSON(strings.Repeat(chunk(strings.Repeat("x", 900))+"\n", 50)) + `}`, `{"exit":3}`},
			turn: flooded, after: func(r *faultRun) { r.awaitGone(10 * time.Second) }},
		fault{name: "replacing themselves", steps: []string{prompted, `{"respawn":50,"gap_ms":400}`, ended, idle},
			stop: want{from: graceBound / 2, to: graceBound}},
		fault{name: "replacing themselves at the exit", steps: []string{prompted, `{"respawn":50,"gap_ms":400}`, `{"exit":3}`},
			turn: want{kind: acp.ErrPortExit, text: "the agent connection was lost: exit status 3"}},
	)
	runFaults(t, rows, func(c *acp.Config) { short(c); c.ReadTimeout = 30 * time.Second })
}

// awaitGone waits for the end of a descendant that is out of reach.
func (r *faultRun) awaitGone(most time.Duration) {
	r.Helper()
	for end := time.Now().Add(most); len(marked(r.fake.mark)) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// TestWrapped: behind a wrapper the runtime outlives the leader.
func TestWrapped(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "marker")
	handler := `{"on_term_ms":400,"path":` + quoteJSON(marker) + `}`
	wrapped := []string{"-wrap"}
	runFaults(t, []fault{
		{name: "what it puts away takes 400 ms", args: wrapped, steps: []string{handler, prompted, ended, `{"answer_all":true}`},
			stop: exactly(want{}, 400*time.Millisecond), after: func(r *faultRun) {
				if _, err := os.Stat(marker); err != nil {
					r.Error(err)
				}
				r.wantForced("")
			}},
		{name: "it ignores all", args: wrapped, steps: []string{`{"ignore":["SIGTERM"]}`, prompted, ended, idle},
			stop: exactly(want{}, graceBound), after: func(r *faultRun) { r.wantForced("grace elapsed") }},
		{name: "it exits", args: wrapped, steps: []string{prompted, `{"exit":127}`},
			turn: want{kind: acp.ErrPortExit, text: "the agent connection was lost: exit status 127", to: time.Second}},
		// The wrapper is the leader: its exit ends the group.
		{name: "the wrapper is killed", args: wrapped, steps: []string{prompted, idle},
			turn: want{kind: acp.ErrPortExit, text: "the agent connection was lost: signal: killed"},
			during: func(r *faultRun) {
				r.await("step 6 ")
				if err := syscall.Kill(r.s.PID(), syscall.SIGKILL); err != nil {
					r.Error(err)
				}
			}},
	}, short)
}

// TestForeignReap: the child is reaped by somebody else in this process.
func TestForeignReap(t *testing.T) {
	together(t)
	for _, inTurn := range []bool{true, false} {
		f := steps(t, strings.Join([]string{prompted, ended, `{"expect":"session/prompt"}`, killed}, ","))
		r := &faultRun{T: t, fake: f, s: f.mustStart()}
		if _, err := r.turn(0, "hello"); err != nil {
			t.Error(err)
		}
		reaped := make(chan error, 1)
		go func() {
			_, err := syscall.Wait4(r.s.PID(), nil, 0, nil)
			reaped <- err
		}()
		if inTurn {
			_, err := r.turn(0, "again")
			wantKind(t, err, acp.ErrPortExit, "the agent connection was lost")
		} else if err := syscall.Kill(r.s.PID(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-reaped // an error if ours was first
		<-r.s.Done()
		if err := r.s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestParentKilled: the runtime of a caller that is killed sees the end of its
// input, and nothing is left.
func TestParentKilled(t *testing.T) {
	together(t)
	for name, script := range map[string]string{
		"between turns": strings.Join([]string{prompted, ended, `{"wait_stdin_eof":true}`, `{"exit":0}`}, ","),
		"in a turn":     strings.Join([]string{prompted, `{"wait_stdin_eof":true}`, `{"exit":0}`}, ","),
	} {
		t.Run(name, func(t *testing.T) {
			f := steps(t, script)
			cmd := helper(t, "parent", append([]string{f.Workspace}, f.Argv...)...)
			cmd.Env = append(cmd.Env, f.Env...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			(&faultRun{T: t, fake: f}).await(" wait_stdin_eof")
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // it was killed
			if left := await(func() []string { return marked(f.mark) }); len(left) > 0 {
				t.Error(left)
			}
			b, err := os.ReadFile(f.report)
			if err != nil || !strings.Contains(string(b), "\nexit 0\n") {
				t.Errorf("%v, report:\n%s", err, b)
			}
		})
	}
}
