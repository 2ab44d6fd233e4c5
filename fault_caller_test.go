package acp_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// The faults of the caller: callbacks that block or unwind, stops from anywhere,
// contexts that end at any moment, a recorder and a logger that block.

// TestConsumer: onEvent blocks for ever, panics, or ends its goroutine.
func TestConsumer(t *testing.T) {
	together(t)
	flood := strings.Join([]string{prompted, sendSeq(20_000, chunk("x")), idle}, ",")
	t.Run("blocks", func(t *testing.T) {
		t.Parallel()
		f := steps(t, flood)
		short(&f.Config)
		s := f.mustStart()
		blocked, release, over := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() { // ends when it is released
			first := sync.OnceFunc(func() { close(blocked); <-release })
			_, err := s.RunTurn(context.Background(), "hello", func(acp.Event) { first() })
			over <- err
		}()
		<-blocked
		if s.Info().AgentName != "fault" {
			t.Error("no Info")
		}
		_, err := s.RunTurn(context.Background(), "again", nil)
		wantKind(t, err, acp.ErrResponseError, "a turn is already in flight")
		began := time.Now()
		err = s.Stop(context.Background())
		exactly(want{}, graceBound/2).check(t, "Stop", err, time.Since(began)) // session/close is not answered
		close(release)
		wantKind(t, <-over, acp.ErrTurnCancelled)
	})
	for name, unwind := range map[string]func(){"panics": func() { panic("oh") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := `{"expect":"session/prompt","as":"second"},` + send(`{"id":${id:second},"result":{"stopReason":"end_turn"}}`)
			f := steps(t, strings.Join([]string{prompted, send(chunk("x")), `{"expect":"session/cancel"}`, stopReason("cancelled"), second, `{"answer_all":true}`}, ","))
			s := f.mustStart()
			unwound := make(chan any)
			go func() {
				defer func() { unwound <- recover() }()
				_, _ = s.RunTurn(context.Background(), "hello", func(e acp.Event) {
					if e.Text != "" {
						unwind()
					}
				})
			}()
			if v := <-unwound; (v != nil) != (name == "panics") {
				t.Errorf("it unwound with %v", v)
			}
			if _, err := s.RunTurn(context.Background(), "again", nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStops: Stop from anywhere, any number of times.
func TestStops(t *testing.T) {
	together(t)
	deaf := strings.Join([]string{`{"ignore":["SIGTERM"]}`, initialized, created, idle}, ",")
	deafInTurn := strings.Join([]string{`{"ignore":["SIGTERM"]}`, prompted, send(chunk("x")), idle}, ",")
	// hundred calls Stop 100 times at once.
	hundred := func(t *testing.T, s *acp.Session, w want) {
		var calls sync.WaitGroup
		began := time.Now()
		for range 100 {
			calls.Go(func() {
				err := s.Stop(context.Background())
				w.check(t, "Stop", err, time.Since(began))
			})
		}
		calls.Wait()
	}
	tests := map[string]func(*testing.T){
		"a hundred at once": func(t *testing.T) {
			f := steps(t, deaf)
			short(&f.Config)
			hundred(t, f.mustStart(), exactly(want{}, graceBound))
		},
		"a hundred in a turn": func(t *testing.T) {
			f := steps(t, deafInTurn)
			short(&f.Config)
			s := f.mustStart()
			over := make(chan error)
			said := make(chan struct{})
			go func() {
				once := sync.OnceFunc(func() { close(said) })
				_, err := s.RunTurn(context.Background(), "hello", func(e acp.Event) {
					if e.Text != "" {
						once()
					}
				})
				over <- err
			}()
			<-said
			hundred(t, s, exactly(want{}, graceBound))
			wantKind(t, <-over, acp.ErrTurnCancelled, "the session was stopped")
		},
		"one of them in a hurry": func(t *testing.T) {
			f := steps(t, deaf)
			s := f.mustStart()
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			var hurried sync.WaitGroup
			hurried.Go(func() { _ = s.Stop(ctx) })
			hundred(t, s, want{to: 300 * time.Millisecond})
			hurried.Wait()
		},
		"context done": func(t *testing.T) {
			f := steps(t, deaf)
			s := f.mustStart()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			began := time.Now()
			err := s.Stop(ctx)
			want{to: time.Second}.check(t, "Stop", err, time.Since(began))
		},
		"inside onEvent": func(t *testing.T) {
			for _, typ := range []acp.EventType{acp.SessionStarted, acp.Notification, acp.TurnCompleted, acp.TurnCancelled} {
				f := steps(t, strings.Join([]string{prompted, send(chunk("x")), ended, `{"answer_all":true}`}, ","))
				s := f.mustStart()
				var types []acp.EventType
				ctx, cancel := context.WithCancel(context.Background())
				_, _ = s.RunTurn(ctx, "hello", func(e acp.Event) {
					types = append(types, e.Type)
					if typ == acp.TurnCancelled {
						cancel()
					}
					if e.Type == typ {
						if err := s.Stop(context.Background()); err != nil {
							t.Error(err)
						}
					}
				})
				cancel()
				if last := types[len(types)-1]; last != acp.TurnCancelled && last != acp.TurnCompleted {
					t.Errorf("events %v", types)
				}
			}
		},
		"behind a lost connection": func(t *testing.T) {
			f := steps(t, prompted+`,{"exit":3}`)
			s := f.mustStart()
			_, err := s.RunTurn(context.Background(), "hello", nil)
			wantKind(t, err, acp.ErrPortExit)
			hundred(t, s, want{})
			<-s.Done()
			hundred(t, s, want{to: time.Second})
			_, err = s.RunTurn(context.Background(), "hello", nil)
			wantKind(t, err, acp.ErrPortExit, "exit status 3")
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// TestStartContexts: the start's context is done before, during and after each of
// its phases.
func TestStartContexts(t *testing.T) {
	together(t)
	cause := errors.New("the caller's reason")
	phases := map[string]string{
		"initialize":  `{"expect":"initialize"},` + idle,
		"session/new": initialized + `,{"expect":"session/new"},` + idle,
	}
	for name, script := range phases {
		t.Run("during "+name, func(t *testing.T) {
			t.Parallel()
			r := &faultRun{T: t, fake: steps(t, script)}
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			go func() {
				r.await(" sleep_ms")
				cancel(cause)
			}()
			a, err := acp.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := a.Start(ctx, r.fake.Config)
			if s != nil {
				t.Error("it started")
			}
			if wantKind(t, err, acp.ErrTurnCancelled); !errors.Is(err, cause) {
				t.Errorf("%v does not name its cause", err)
			}
		})
	}
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		f := steps(t, `{"exit":0}`)
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		a, err := acp.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Start(ctx, f.Config)
		if wantKind(t, err, acp.ErrTurnCancelled); !errors.Is(err, cause) || f.wire.String() != "" {
			t.Errorf("%v, wire %q", err, f.wire.String())
		}
	})
	t.Run("after", func(t *testing.T) {
		t.Parallel()
		f := newFake(t, "-plain")
		ctx, cancel := context.WithCancel(context.Background())
		a, err := acp.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.Start(ctx, f.Config)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := s.RunTurn(context.Background(), "hello", nil); err != nil {
			t.Error(err)
		}
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestTurnContexts: the turn's context is done before, during and after each of
// its phases, and the session goes on.
func TestTurnContexts(t *testing.T) {
	together(t)
	second := `{"expect":"session/prompt","as":"second"},` + send(`{"id":${id:second},"result":{"stopReason":"end_turn"}}`) + `,{"answer_all":true}`
	answered := prompted + "," + send(chunk("x")) + `,{"expect":"session/cancel"},` + stopReason("cancelled") + "," + second
	whole := prompted + "," + send(chunk("x")) + "," + ended + "," + second
	tests := []struct {
		name, script string
		at           acp.EventType // cancelled with it; empty: before
		kind         acp.ErrorKind
	}{
		{"before", initialized + "," + created + "," + second, "", acp.ErrTurnCancelled},
		{"with the first chunk", answered, acp.Notification, acp.ErrTurnCancelled},
		{"at the end", whole, acp.TurnCompleted, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &faultRun{T: t, fake: steps(t, test.script)}
			r.s = r.fake.mustStart()
			ctx, cancel := context.WithCancelCause(context.Background())
			cause := errors.New("the caller's reason")
			if test.at == "" {
				cancel(cause)
			}
			res, err := r.s.RunTurn(ctx, "hello", func(e acp.Event) {
				if e.Type == test.at && (e.Type != acp.Notification || e.Text != "") {
					cancel(cause)
				}
			})
			cancel(nil)
			want{kind: test.kind}.check(t, "RunTurn", err, 0)
			if err != nil && (!errors.Is(err, cause) || res.ExitReason != acp.TurnCancelled) {
				t.Errorf("%+v, %v", res, err)
			}
			if _, err := r.turn(0, "again"); err != nil {
				t.Error(err)
			}
			r.wantScript()
		})
	}
}

// gate is a writer that blocks until it is opened.
type gate struct {
	open chan struct{}
	once sync.Once
	met  chan struct{} // closed when something waits
}

func newGate() *gate { return &gate{open: make(chan struct{}), met: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.met) })
	<-g.open
	return len(b), nil
}

// TestBlockingRecorder: the transcript is given up after a second in all.
func TestBlockingRecorder(t *testing.T) {
	together(t)
	g := newGate()
	r := &faultRun{T: t, fake: steps(t, strings.Join([]string{prompted, sendSeq(1000, chunk("x")), ended, `{"answer_all":true}`}, ",")), log: &records{t: t}}
	r.fake.Record, r.fake.Logger = g, slog.New(r.log)
	r.s = r.fake.mustStart()
	took, err := r.turn(0, "hello")
	want{to: 2 * time.Second}.check(t, "RunTurn", err, took)
	if said := r.said(); said != strings.Repeat("x", 1000) {
		t.Errorf("it said %q", said)
	}
	began := time.Now()
	err = r.s.Stop(context.Background())
	want{to: time.Second}.check(t, "Stop", err, time.Since(began))
	if got := r.log.find("transcript given up"); len(got) != 1 || got[0].level != slog.LevelWarn {
		t.Errorf("given up: %v", got)
	}
	close(g.open) // its goroutine is left with the writer and ends with it
}

// TestQuietBlockingRecorder: even when nothing waits for it but the end.
func TestQuietBlockingRecorder(t *testing.T) {
	together(t)
	g := newGate()
	f := steps(t, strings.Join([]string{prompted, ended, `{"answer_all":true}`}, ","))
	log := &records{t: t}
	f.Record, f.Logger = g, slog.New(log)
	s := f.mustStart()
	if _, err := s.RunTurn(context.Background(), "hello", nil); err != nil {
		t.Error(err)
	}
	began := time.Now()
	err := s.Stop(context.Background())
	exactly(want{}, time.Second).check(t, "Stop", err, time.Since(began))
	if got := log.find("transcript given up"); len(got) != 1 || got[0].level != slog.LevelWarn {
		t.Errorf("given up: %v", got)
	}
	close(g.open)
}

// TestBlockingLogger: a logger must not block. One that does holds the session
// up for as long, and nothing else comes of it.
func TestBlockingLogger(t *testing.T) {
	census(t)
	g := newGate()
	f := steps(t, strings.Join([]string{prompted, send("garbage"), send(chunk("x")), ended, `{"answer_all":true}`}, ","))
	handler := slog.NewTextHandler(g, &slog.HandlerOptions{Level: slog.LevelDebug})
	f.Logger = slog.New(only{handler, "agent wrote a line that is no message"})
	s := f.mustStart()
	over := make(chan error)
	go func() {
		_, err := s.RunTurn(context.Background(), "hello", nil)
		over <- err
	}()
	<-g.met
	stopped := make(chan error)
	go func() { stopped <- s.Stop(context.Background()) }()
	close(g.open)
	if err := <-over; err != nil {
		wantKind(t, err, acp.ErrTurnCancelled) // Stop may come first
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// only is a handler that passes one message on.
type only struct {
	slog.Handler
	message string
}

func (h only) WithAttrs(attrs []slog.Attr) slog.Handler {
	return only{h.Handler.WithAttrs(attrs), h.message}
}

func (h only) Handle(ctx context.Context, r slog.Record) error {
	if r.Message != h.message {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
