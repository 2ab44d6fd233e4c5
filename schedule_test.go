package acp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A schedule is one session under an arbitrary order of what a runtime, a
// caller and the clock can do.
type schedule struct {
	*stage
	turns []*scheduledTurn
	stops sync.WaitGroup
	gate  chan struct{} // the consumer of a turn begun now goes on when it is closed
	shut  bool          // it is not
	slow  bool          // it was once not

	mu        sync.Mutex
	open      []wire // prompts that are unanswered
	cancels   int    // since the last prompt
	asked     int    // requests of ours to the client
	troubled  bool   // the connection is no longer whole: not every request need be answered
	overlong  bool   // a line over the bound may have been the answer to a prompt
	toolCount int
}

type scheduledTurn struct {
	cancel    context.CancelFunc
	over      <-chan outcome
	begun     time.Time
	cancelled time.Time
}

const (
	schedLine = 2048
	schedRead = 3 * time.Second
)

// prompted is the runtime's handler of a prompt.
func (s *schedule) prompted(w wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) > 0 && !s.overlong {
		s.t.Error("two prompts are open at the runtime")
	}
	s.open, s.cancels = append(s.open, w), 0
}

func (s *schedule) cancelled(wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancels++; s.cancels > 1 {
		s.t.Error("session/cancel went out twice for one prompt")
	}
}

// closePrompt returns the open prompt as answered.
func (s *schedule) closePrompt() (w wire, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		return w, false
	}
	w = s.open[0]
	s.open = s.open[1:]
	return w, true
}

func (s *schedule) ask(method, params string) {
	s.asked++
	s.send(request(fmt.Sprintf(`"r%d"`, s.asked), method, params))
}

func (s *schedule) trouble(f func()) func() { return func() { s.troubled = true; f() } }

// acts are what can happen, each at any time and any number of times.
func (s *schedule) acts() []func() {
	wait := func(d time.Duration) func() { return func() { time.Sleep(d) } }
	reply := func(result string) func() {
		return func() {
			if w, ok := s.closePrompt(); ok {
				s.send(answerLine(w, result))
			}
		}
	}
	turn := func() {
		ctx, cancel := context.WithCancel(context.Background())
		gate := s.gate
		s.turns = append(s.turns, &scheduledTurn{cancel: cancel, begun: time.Now(), over: s.goTurn(ctx, func(Event) { <-gate })})
	}
	cancel := func() {
		for _, t := range s.turns {
			if t.cancelled.IsZero() {
				t.cancelled = time.Now()
				t.cancel()
				return
			}
		}
	}
	stop := func(d time.Duration) func() {
		return s.trouble(func() {
			s.stops.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), d)
				defer cancel()
				began := time.Now()
				_ = s.s.Stop(ctx) // an outlived kill is reported
				if took := time.Since(began); took > s.c.grace+3*time.Second {
					s.t.Errorf("Stop took %v", took)
				}
			})
		})
	}
	return []func(){
		synctest.Wait, synctest.Wait, synctest.Wait,
		wait(time.Millisecond), wait(time.Second), wait(schedRead), wait(5 * time.Second),
		turn, turn, turn, cancel, cancel, stop(time.Hour), stop(time.Second), stop(0),
		reply(`{"stopReason":"end_turn"}`), reply(`{"stopReason":"end_turn"}`), reply(`{"stopReason":"cancelled"}`), reply(`5`),
		func() {
			if w, ok := s.closePrompt(); ok {
				s.send(errorLine(w, `{"code":-1,"message":"m"}`))
			}
		},
		func() {
			if w, ok := s.closePrompt(); ok { // an answer, and another that counts for nothing
				s.send(chunk("a"), answerLine(w, `{"stopReason":"refusal"}`), answerLine(w, `{}`), chunk("b"))
			}
		},
		func() { s.send(chunk("x")) },
		func() { s.send(strings.Repeat(chunk("x")+"\n", 600)) },
		func() { s.send("garbage", kind("plan", `,"entries":[]`), kind("party", "")) },
		func() { s.send(begins(fmt.Sprint(s.toolCount), "")); s.toolCount++ },
		func() { s.send(ends(fmt.Sprint(s.toolCount / 2))) },
		func() {
			s.mu.Lock()
			s.overlong = true
			s.mu.Unlock()
			s.send(strings.Repeat("x", schedLine+1))
		},
		func() {
			line := chunk("in two pieces") + "\n"
			s.stdout.set(func() { s.stdout.data = append(s.stdout.data, line[:20]...) })
			synctest.Wait()
			s.stdout.set(func() { s.stdout.data = append(s.stdout.data, line[20:]...) })
		},
		func() { s.ask("session/request_permission", `{"options":[`+option("n", "reject_once")+`]}`) },
		func() { s.ask("session/request_permission", noGrant) },
		func() { s.ask("elicitation/create", `{}`) },
		func() { s.ask("fs/read_text_file", `{}`) },
		s.trouble(func() { s.hangUp() }),
		s.trouble(func() { s.exit("exit status 1", 1) }),
		s.trouble(func() { s.die("exit status 2", 2) }),
		s.trouble(func() { s.stdin.set(func() { s.stdin.noReader = true }) }),
		s.trouble(func() { s.stdin.set(func() { s.stdin.stuck = true }) }),
		func() { s.stdin.set(func() { s.stdin.stuck = false }) },
		s.trouble(func() { s.signalled(func(bool) {}) }),
		s.trouble(func() {
			for range 100 {
				s.ask("fs/x", `{}`)
			}
		}),
		func() { // turns begun from now on have a consumer that waits, until this comes again
			if s.slow = true; s.shut {
				close(s.gate)
			} else {
				s.gate = make(chan struct{})
			}
			s.shut = !s.shut
		},
	}
}

// play plays a schedule and checks what holds for every one.
func play(t *testing.T, script []byte) {
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{stage: newStage(t, &Adapter{}), gate: make(chan struct{})}
		close(s.gate)
		s.c.maxLine, s.c.readTimeout, s.c.grace = schedLine, schedRead, time.Second
		s.stdin.room = 4 << 10
		s.handle("session/prompt", s.prompted)
		s.handle("session/cancel", s.cancelled)
		s.start()
		acts := s.acts()
		for _, b := range script {
			acts[int(b)%len(acts)]()
		}
		if s.shut {
			close(s.gate)
		}
		s.finish()
	})
}

// finish ends the schedule: with everything let go, all must come to an end.
func (s *schedule) finish() {
	t := s.t
	synctest.Wait()
	s.stdin.set(func() { s.stdin.stuck = false })
	synctest.Wait()
	answers := make(map[string]int)
	for _, w := range s.sent("") {
		answers[string(w.ID)]++
	}
	for i := 1; i <= s.asked; i++ {
		switch n := answers[fmt.Sprintf(`"r%d"`, i)]; {
		case n > 1, n == 0 && !s.troubled:
			t.Errorf("request %d was answered %d times", i, n)
		}
	}
	for _, turn := range s.turns {
		if turn.cancelled.IsZero() {
			turn.cancelled = time.Now()
			turn.cancel()
		}
	}
	completed := 0
	for i, turn := range s.turns {
		o := <-turn.over
		if late := turn.begun.Add(o.took).Sub(turn.cancelled); late > schedRead && !s.slow {
			t.Errorf("turn %d returned %v behind its cancellation", i, late)
		}
		e, ok := errors.AsType[*Error](o.err)
		switch {
		case o.err == nil:
			completed++
		case !ok || e.Kind == "":
			t.Errorf("turn %d: %v", i, o.err)
		}
	}
	if n := len(s.sent("session/prompt")); completed > n {
		t.Errorf("%d turns completed of %d prompts", completed, n)
	}
	began := time.Now()
	_ = s.s.Stop(context.Background()) // an outlived kill is reported
	if took := time.Since(began); took > s.c.grace+3*time.Second {
		t.Errorf("Stop took %v", took)
	}
	s.stops.Wait()
	<-s.s.Done()
	s.close()
}

var schedSeed = flag.Uint64("schedule.seed", 0, "the seed of TestSchedules; 0: a new one")

// TestSchedules plays random schedules.
func TestSchedules(t *testing.T) {
	t.Parallel()
	seed := *schedSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-schedule.seed=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule is no secret
	n := 1000
	if testing.Short() {
		n = 200
	}
	for range n {
		script := make([]byte, rnd.IntN(40))
		for i := range script {
			script[i] = byte(rnd.Uint32())
		}
		if play(t, script); t.Failed() {
			t.Fatalf("the script was %v", script)
		}
	}
}

// FuzzSchedule looks for a schedule that breaks an invariant: one result a
// turn, its terminal event last, one answer a request, one prompt open, no
// signal behind the reap, and an end inside every bound with nothing left.
func FuzzSchedule(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{7, 0, 15, 7, 0, 10, 15})
	f.Add([]byte{7, 0, 25, 10, 16, 7, 12})
	f.Add([]byte{7, 0, 33, 0, 7, 12, 13})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) <= 100 {
			play(t, script)
		}
	})
}
