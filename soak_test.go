package acp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// TestSoak runs 200 sessions at once, one after the other in each place, through
// random faults, for as long as ACP_SOAK says. ACP_SEED repeats a run, as far as
// the scheduler lets it.
//
//	ACP_SOAK=10m go test -run TestSoak -timeout 0 .
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("ACP_SOAK"))
	if err != nil {
		t.Skip("a soak runs for as long as ACP_SOAK says: ACP_SOAK=10m go test -run TestSoak -timeout 0 .")
	}
	seed := uint64(time.Now().UnixNano()) // #nosec G115 -- any number will do
	if v := os.Getenv("ACP_SEED"); v != "" {
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("seed: ACP_SEED=%d\n", seed) // at once, and also if it hangs
	leaks(t)
	s := newSoak(t)
	end := time.Now().Add(length)
	var places sync.WaitGroup
	for place := range uint64(200) {
		places.Go(func() {
			for n := uint64(0); time.Now().Before(end) && !t.Failed(); n++ {
				s.session(rand.New(rand.NewPCG(seed, place<<32|n)), place) // #nosec G404 -- repeatable on purpose
			}
		})
	}
	places.Wait()
	t.Logf("%d sessions started, %d did not; %d reaped late; turns: %v", s.started, s.failed, s.late, s.turns)
	s.wantNobody(t)
}

// TestCycles starts and stops sessions, ACP_CYCLES of them.
func TestCycles(t *testing.T) {
	cycles := 20
	if v := os.Getenv("ACP_CYCLES"); v != "" {
		var err error
		if cycles, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	leaks(t)
	s := newSoak(t)
	next := make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for n := range next {
				c := s.config("-plain")
				session, err := s.adapter.Start(context.Background(), c)
				if err != nil {
					t.Errorf("cycle %d: %v", n, err)
					continue
				}
				if err := session.Stop(context.Background()); err != nil {
					t.Errorf("cycle %d: %v", n, err)
				}
			}
		})
	}
	for n := range cycles {
		next <- n
	}
	close(next)
	workers.Wait()
	s.wantNobody(t)
}

// A soak is what its sessions share.
type soak struct {
	t       *testing.T
	adapter *acp.Adapter
	program string
	dir     string
	mark    string

	mu              sync.Mutex
	started, failed int
	late            int                   // reaped behind the bound
	turns           map[acp.EventType]int // by their ends
}

func newSoak(t *testing.T) *soak {
	program, err := fakeAgent()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, err := acp.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &soak{t: t, adapter: a, program: program, dir: dir, mark: "ACP_TEST_MARK=" + dir, turns: make(map[acp.EventType]int)}
}

func (s *soak) config(args ...string) acp.Config {
	return acp.Config{Workspace: s.dir, Argv: append([]string{s.program}, args...), Env: append(os.Environ(), s.mark)}
}

// wantNobody fails the test when a process of the soak lives, or is a zombie.
func (s *soak) wantNobody(t *testing.T) {
	if left := await(func() []string { return append(marked(s.mark), zombies()...) }); len(left) > 0 {
		t.Errorf("processes left:\n%s", strings.Join(left, "\n"))
	}
}

// zombies lists the children of this process that nobody has reaped, where the
// system tells.
func zombies() (list []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		stat, err := os.ReadFile(name) // #nosec G304 -- of /proc
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(os.Getpid()) {
			list = append(list, string(stat))
		}
	}
	return list
}

// session is one session through random faults.
func (s *soak) session(rnd *rand.Rand, place uint64) {
	script := soakScript(rnd)
	name := filepath.Join(s.dir, fmt.Sprintf("scenario-%d.json", place))
	if err := os.WriteFile(name, []byte(`{"id":"soak","script":[`+script+`]}`), 0o600); err != nil {
		s.t.Error(err)
		return
	}
	hang := time.AfterFunc(5*time.Minute, func() { panic("a session hangs: " + script) })
	defer hang.Stop()
	c := s.config("-scenario", name)
	c.HandshakeTimeout, c.ReadTimeout = time.Minute, between(rnd, 300, 5000)
	c.StopGrace, c.MaxLine, c.ChunkText = between(rnd, 20, 1500), 64<<10, rnd.IntN(2) == 0
	if rnd.IntN(2) == 0 {
		c.Record = io.Discard
	}
	ctx, cancel := context.WithTimeout(context.Background(), pick(rnd, time.Hour, time.Hour, time.Hour, time.Hour, between(rnd, 1, 3000)))
	session, err := s.adapter.Start(ctx, c)
	cancel()
	s.count(err)
	if err != nil {
		s.ours(err, script)
		return
	}
	var beside sync.WaitGroup
	if rnd.IntN(4) == 0 {
		wait, hurry := between(rnd, 0, 2000), between(rnd, 1, 1000)
		beside.Go(func() {
			time.Sleep(wait)
			ctx, cancel := context.WithTimeout(context.Background(), hurry)
			defer cancel()
			_ = session.Info()
			s.ours(session.Stop(ctx), script)
		})
	}
	for range 1 + rnd.IntN(4) {
		s.turn(rnd, session, script)
	}
	s.stop(session, script)
	beside.Wait()
	<-session.Done()
	_ = session.Info()
}

// stop stops a session. That a killed process is not reaped within 2 s happens
// where hundreds want two processors; it must be gone in the end all the same.
func (s *soak) stop(session *acp.Session, script string) {
	err := session.Stop(context.Background())
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "the agent process outlived its kill"):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late++
	default:
		s.t.Errorf("Stop: %v\n%s", err, script)
	}
}

func between(rnd *rand.Rand, least, most int) time.Duration { return ms(least + rnd.IntN(most-least)) }

func pick[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

func (s *soak) count(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.started++
	} else {
		s.failed++
	}
}

// ours fails the test when an error is not of the package's type.
func (s *soak) ours(err error, script string) {
	var e *acp.Error
	if err != nil && !errors.As(err, &e) {
		s.t.Errorf("a %T: %v\n%s", err, err, script)
	}
}

// turn is one turn with a random consumer.
func (s *soak) turn(rnd *rand.Rand, session *acp.Session, script string) {
	ctx, cancel := context.WithTimeout(context.Background(), between(rnd, 1, 3000))
	defer cancel()
	slow, special := between(rnd, 0, 3), rnd.IntN(40)
	var events []acp.Event
	res, err := func() (res acp.Result, err error) {
		defer func() {
			if v := recover(); v != nil && v != "consumer" {
				panic(v)
			}
		}()
		return session.RunTurn(ctx, strings.Repeat("hello ", rnd.IntN(1<<rnd.IntN(18))), func(e acp.Event) {
			events = append(events, e)
			switch {
			case special == 0 && len(events) == 3:
				panic("consumer")
			case special == 1 && len(events) == 2:
				s.ours(session.Stop(ctx), script)
			case len(events)%16 == 0:
				time.Sleep(slow)
			}
		})
	}()
	s.ours(err, script)
	if special == 0 && len(events) == 3 || len(events) == 0 {
		return // it panicked, or was refused
	}
	p := &play{T: s.t, session: session}
	p.wellFormed(events, res, err)
	for _, problem := range p.problems {
		s.t.Errorf("%s\n%s", problem, script)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns[res.ExitReason]++
}

// soakScript makes up a runtime: mostly one that can be talked to, for a while.
func soakScript(rnd *rand.Rand) string {
	deaths := []string{`{"exit":0}`, `{"exit":3}`, killed, half + "," + killed, `{"close_stdout":true}`, `{"close_stdin":true}`,
		`{"close_stdin":true},{"close_stdout":true}`, idle, `{"stop_self":true}`, `{"spawn_holder":60},{"exit":1}`,
		`{"spawn_writer":60,"gap_ms":5,"line":"x"},{"exit":1}`, `{"respawn":3,"gap_ms":20},{"exit":1}`, `{"stop_reading":true},` + idle}
	ask := `{"id":"a${i}","method":"session/request_permission","params":{"options":[{"optionId":"no","kind":"reject_once"}]}}`
	says := []string{send(chunk("hello ")), sendSeq(200, chunk("x")), sendSeq(5, ask), send("garbage"), sendSeq(300, `{"id":"u${i}","method":"fs/x"}`),
		send(`{"id":1,"method":"elicitation/create"}`), send(`{"id":2,"method":"session/request_permission","params":{}}`),
		`{"send_fill":{"byte":"x","count":70000}}`, `{"stderr_fill":100000}`, `{"sleep_ms":20}`, `{"expect":"session/cancel","within_ms":300}`,
		send(update(`{"sessionUpdate":"tool_call","toolCallId":"c","title":"t"}`)), half + `,{"sleep_ms":5},` + send("")}
	var script []string
	add := func(odds int, of ...string) {
		if rnd.IntN(odds) == 0 {
			script = append(script, pick(rnd, of...))
		}
	}
	add(8, `{"ignore":["SIGTERM"]}`, `{"on_term_ms":30}`, `{"on_term_ms":2000}`)
	add(30, deaths...)
	script = append(script, initialized)
	add(30, deaths...)
	script = append(script, created)
	for range rnd.IntN(4) {
		script = append(script, `{"expect":"session/prompt"}`)
		for range rnd.IntN(6) {
			add(1, says...)
		}
		add(8, deaths...)
		add(1, ended, ended, ended, stopReason("refusal"), stopReason("cancelled"), send(`{"id":${id:session/prompt},"error":{"code":1,"message":"no"}}`), `{"sleep_ms":1}`)
		add(10, says...)
	}
	add(2, idle, `{"exit":0}`, `{"answer_all":true}`)
	return strings.Join(script, ",")
}
