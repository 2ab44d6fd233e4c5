package acp_test

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// killedStatus is how a killed process ended.
func killedStatus() string {
	if runtime.GOOS == "windows" {
		return "exit status 1"
	}
	return "signal: killed"
}

// TestExits: the runtime exits, or is killed, before, during and after each
// phase of a session.
func TestExits(t *testing.T) {
	var rows []fault
	for _, way := range []struct{ step, status string }{
		{`{"exit":0}`, "exit status 0"}, {`{"exit":3}`, "exit status 3"}, {`{"exit":127}`, "exit status 127"},
		{`{"kill_self":true}`, killedStatus()},
	} {
		early := want{kind: acp.ErrPortExit, text: "the agent runtime exited before responding: " + way.status, to: 4 * time.Second}
		lost := want{kind: acp.ErrPortExit, text: "the agent connection was lost: " + way.status}
		add := func(phase string, f fault) {
			f.name = phase + "/" + way.status
			rows = append(rows, f)
		}
		add("before initialize", fault{steps: []string{way.step}, start: early})
		add("initialize, mid line", fault{steps: []string{`{"expect":"initialize"}`, half, way.step}, start: early})
		add("behind initialize", fault{steps: []string{initialized, way.step}, start: early})
		add("session/new, mid line", fault{steps: []string{initialized, `{"expect":"session/new"}`, half, way.step}, start: early})
		add("behind session/new", fault{
			steps: []string{initialized, created, way.step},
			turn:  want{kind: acp.ErrPortExit, text: "the agent connection was lost"},
			then:  func(r *faultRun) { <-r.s.Done(); r.wantRefused(lost) },
		})
		add("turn", fault{steps: []string{prompted, way.step}, turn: lost})
		add("turn, mid line", fault{
			steps: []string{prompted, send(chunk("hello ")), half, way.step}, turn: lost,
			then: func(r *faultRun) {
				if r.said() != "hello " || r.count(acp.Notification, "hello ") != 1 || r.count(acp.Malformed, "") != 1 {
					r.Errorf("events %v", r.events)
				}
				r.wantRefused(lost)
			},
		})
		add("turn, mid answer", fault{
			steps: []string{prompted, `{"send":"{\"id\":${id:session/prompt},\"result\":{\"stopReason\":\"end_turn\"}","eol":""}`, way.step},
			turn:  lost,
		})
		add("between turns", fault{
			steps: []string{prompted, ended, way.step},
			then:  func(r *faultRun) { <-r.s.Done(); r.wantRefused(lost) },
		})
		add("session/close", fault{
			steps: []string{prompted, ended, `{"expect":"session/close"}`, half, way.step}, stop: want{to: 2 * time.Second},
			after: func(r *faultRun) { r.wantForced("") },
		})
	}
	runFaults(t, rows)
}

// wantRefused runs a turn on a session that is lost.
func (r *faultRun) wantRefused(w want) {
	r.Helper()
	took, err := r.turn(0, "again")
	w.check(r.T, "the turn behind it", err, took)
	if len(r.events) > 0 {
		r.Errorf("it was not refused but began: %v", r.events)
	}
}

// runs is how often a race is run: ACP_RUNS, and else often enough to notice.
func runs(t *testing.T, usual int) int {
	if v := os.Getenv("ACP_RUNS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return usual
}

// TestAnswerThenExit: a final answer followed at once by the exit is a completed
// turn, every time.
func TestAnswerThenExit(t *testing.T) {
	together(t)
	final := strings.TrimSuffix(ended, "}")
	tests := []struct {
		name  string
		steps []string
		runs  int
		slow  time.Duration // an event takes the consumer so long
		took  time.Duration // at least
		said  string
	}{
		{"a line", []string{prompted, send(chunk("done")), ended, `{"exit":0}`}, 50, 0, 0, "done"},
		{"without a newline", []string{prompted, send(chunk("done")), final + `,"eol":""}`, `{"exit":3}`}, 50, 0, 0, "done"},
		{"killed", []string{prompted, send(chunk("done")), ended, `{"kill_self":true}`}, 20, 0, 0, "done"},
		// 1,000 chunks of 110 bytes wait in the pipe, and at 10 ms each they take longer
		// than the stream is waited for behind an exit.
		{"a slow consumer", []string{prompted, sendSeq(1000, chunk("x")), ended, `{"exit":0}`}, 2, 10 * time.Millisecond,
			10 * time.Second, strings.Repeat("x", 1000)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			left := make(chan int)
			var group sync.WaitGroup
			workers := 2
			if test.slow > 0 { // they sleep most of the time
				workers = 50
			}
			for range workers {
				group.Go(func() {
					for range left {
						answerThenExit(t, strings.Join(test.steps, ","), test.slow, test.took, test.said)
					}
				})
			}
			for i := range runs(t, test.runs) {
				left <- i
			}
			close(left)
			group.Wait()
		})
	}
}

func answerThenExit(t *testing.T, script string, slow, took time.Duration, said string) {
	f := steps(t, script)
	s, err := f.start()
	if err != nil {
		t.Error(err)
		return
	}
	var text strings.Builder
	began := time.Now()
	res, err := s.RunTurn(context.Background(), "hello", func(e acp.Event) {
		text.WriteString(e.Text)
		time.Sleep(slow)
	})
	if err != nil || res.ExitReason != acp.TurnCompleted || text.String() != said {
		t.Errorf("%+v, %v, it said %q", res, err, text.String())
	}
	if d := time.Since(began); d < took {
		t.Errorf("the turn took %v, want %v or more", d, took)
	}
	<-s.Done()
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestEarlyExitReport: what the runtime said last is in the error.
func TestEarlyExitReport(t *testing.T) {
	together(t)
	long := `{"stderr_fill":200000}`
	tests := []struct {
		name  string
		steps []string
		text  []string
	}{
		{"nothing said", []string{`{"exit":0}`}, []string{"exit status 0: no standard-error output"}},
		{"lines", []string{`{"stderr":"one\n\n \u001b[31mtwo\u001b[0m\tthree\r\n"}`, `{"exit":3}`}, []string{"exit status 3: one | two three"}},
		{"too much", []string{long, `{"stderr":"the end\n"}`, `{"exit":1}`}, []string{"[earlier output omitted] eee", "| the end"}},
		{"behind a long line", []string{`{"stderr_fill":2000000,"one_line":true}`, `{"exit":1}`}, []string{"[earlier output omitted] eee"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := steps(t, strings.Join(test.steps, ",")).start()
			if s != nil {
				t.Fatal("it started")
			}
			wantKind(t, err, acp.ErrPortExit, slices.Concat([]string{"the agent runtime exited before responding: "}, test.text)...)
			if n := len(err.Error()); n > 8<<10+200 {
				t.Errorf("the error is of %d bytes", n)
			}
		})
	}
}
