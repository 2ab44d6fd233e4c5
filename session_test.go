package acp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A logbook keeps the log.
type logbook struct {
	mu      sync.Mutex
	records []string
	hook    func(msg string)
}

// logTo is one logger of a logbook, with its attributes.
type logTo struct {
	*logbook
	attrs string
}

func (h logTo) Enabled(context.Context, slog.Level) bool { return true }
func (h logTo) WithGroup(string) slog.Handler            { return h }

func (h logTo) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += " " + a.String()
	}
	return h
}

func (h logTo) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message + h.attrs
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	h.mu.Lock()
	h.records = append(h.records, line)
	hook := h.hook
	h.mu.Unlock()
	if hook != nil {
		hook(r.Message)
	}
	return nil
}

// count returns how many records hold all the texts.
func (b *logbook) count(texts ...string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, r := range b.records {
		for _, text := range texts {
			if !strings.Contains(r, text) {
				continue next
			}
		}
		n++
	}
	return n
}

// A stage is a session over a peer.
type stage struct {
	*peer
	a   *Adapter
	c   *launch
	log *logbook
	s   *Session

	prompt string // of every turn
}

// bubble runs f with a stage that is not started, and ends it.
func bubble(t *testing.T, f func(t *testing.T, r *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newStage(t, &Adapter{})
		f(t, r)
		if r.s != nil {
			if err := r.s.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
		}
		r.close()
	})
}

func newStage(t *testing.T, a *Adapter) *stage {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := &stage{peer: newPeer(t), a: a, log: &logbook{}, prompt: "do it"}
	r.c = &launch{
		workspace: dir, maxLine: 1 << 20,
		readTimeout: 30 * time.Second, handshakeTimeout: time.Minute, grace: 5 * time.Second,
		redact: func(s string) string { return s },
		log:    slog.New(logTo{r.log, ""}),
		spawn: func(context.Context, []string, string, []string, *slog.Logger) (*process, *Error) {
			return r.proc, nil
		},
	}
	return r
}

// close lets go of the peer of a session that is over.
func (r *stage) close() {
	r.exit("signal: killed", -1)
	select {
	case <-r.proc.mayReap:
	default:
		close(r.proc.mayReap)
	}
}

// tryStart is Start behind the plan.
func (r *stage) tryStart(ctx context.Context) error {
	s, err := r.a.settleSource(ctx, r.c)
	if err != nil {
		return err
	}
	if err := s.create(ctx); err != nil {
		return err
	}
	r.s = s
	return nil
}

func (r *stage) start() {
	r.t.Helper()
	if err := r.tryStart(r.t.Context()); err != nil {
		r.t.Fatalf("start: %v", err)
	}
}

// began starts a session whose prompts are handled by prompt.
func (r *stage) began(prompt func(w wire)) {
	r.t.Helper()
	r.handle("session/prompt", prompt)
	r.start()
}

// look has the loop run f and waits for it; false: the session is over.
func (r *stage) look(f func(l *loop)) bool {
	done := make(chan struct{})
	if !r.s.do(func(l *loop) { f(l); close(done) }) {
		return false
	}
	<-done
	return true
}

// An outcome is a turn that is over.
type outcome struct {
	res    Result
	err    error
	events []Event
	took   time.Duration
}

// turn runs one turn and checks what holds for every one.
func (r *stage) turn(ctx context.Context) outcome {
	r.t.Helper()
	return <-r.goTurn(ctx, nil)
}

// goTurn runs a turn on a goroutine of its own. each, if not nil, is called
// for every event.
func (r *stage) goTurn(ctx context.Context, each func(Event)) <-chan outcome {
	over := make(chan outcome, 1)
	go func() {
		var o outcome
		began := time.Now()
		o.res, o.err = r.s.RunTurn(ctx, r.prompt, func(ev Event) {
			o.events = append(o.events, ev)
			if each != nil {
				each(ev)
			}
		})
		o.took = time.Since(began)
		wellFormed(r.t, o)
		over <- o
	}()
	return over
}

// wellFormed checks what SPEC 3 and DESIGN say of every turn.
func wellFormed(t *testing.T, o outcome) {
	e, isOurs := errors.AsType[*Error](o.err)
	if o.err != nil && !isOurs {
		t.Errorf("the error of RunTurn is a %T", o.err)
	}
	if len(o.events) == 0 {
		if o.err == nil || o.res != (Result{}) {
			t.Errorf("a turn without events: result %+v, error %v", o.res, o.err)
		}
		return
	}
	last := o.events[len(o.events)-1]
	message := ""
	if o.err != nil {
		message = e.Message
	}
	if last.Type != o.res.ExitReason || last.Message != message || (o.err == nil) != (last.Type == TurnCompleted) {
		t.Errorf("last event %+v, result %+v, error %v", last, o.res, o.err)
	}
	for i, ev := range o.events {
		terminal := ev.Type == TurnCompleted || ev.Type == TurnFailed || ev.Type == TurnCancelled || ev.Type == TurnInputRequired
		if (ev.Type == SessionStarted) != (i == 0) || terminal != (i == len(o.events)-1) {
			t.Errorf("event %d of %d is %s", i, len(o.events), ev.Type)
		}
		if ev.SessionID == "" || ev.PID == 0 || ev.Time.IsZero() {
			t.Errorf("an event without session, process or time: %+v", ev)
		}
	}
}

// show writes events down, without the first and the last.
func (o outcome) show() (list []string) {
	for _, ev := range o.events {
		s := string(ev.Type)
		if ev.Type == ToolResult {
			s += fmt.Sprintf(" %s %v", ev.ToolName, ev.ToolDuration)
			if ev.ToolError {
				s += " failed"
			}
		}
		if ev.Message != "" {
			s += " " + ev.Message
		}
		if ev.Text != "" {
			s += " «" + ev.Text + "»"
		}
		list = append(list, s)
	}
	return list[min(1, len(list)):max(1, len(list)-1)]
}

// wants checks the events between the first and the last.
func (o outcome) wants(t *testing.T, want ...string) {
	t.Helper()
	got := o.show()
	if !slices.Equal(got, want) {
		t.Errorf("events\n got  %s\n want %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

// wantError checks an error's kind, "" for none, and texts in it.
func wantError(t *testing.T, err error, kind ErrorKind, texts ...string) {
	t.Helper()
	if err == nil && kind == "" {
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind {
		t.Errorf("error %v, want %s", err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(e.Error(), text) {
			t.Errorf("error %q, want %q in it", e, text)
		}
	}
}

func wantTook(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got != want {
		t.Errorf("it took %v, want %v", got, want)
	}
}

// TestWire is every message of ours in a plain session, to the letter.
func TestWire(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		r.began(func(w wire) { r.stop(w, "end_turn") })
		dir := js(r.c.workspace)
		r.turn(t.Context())
		r.handle("session/prompt", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.turn(ctx)
		if err := r.s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		want := []string{
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false},"clientInfo":{"name":"acp","version":"` + moduleVersion() + `"}}}`,
			`{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":` + dir + `,"mcpServers":[]}}`,
			`{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"s1","prompt":[{"type":"text","text":"do it"}]}}`,
			`{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"s1","prompt":[{"type":"text","text":"do it"}]}}`,
			`{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s1"}}`,
			`{"jsonrpc":"2.0","id":5,"method":"session/close","params":{"sessionId":"s1"}}`,
		}
		var got []string
		for _, w := range r.got {
			got = append(got, w.raw)
		}
		if !slices.Equal(got, want) {
			t.Errorf("we wrote\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if n := r.log.count("INFO agent implementation", "session_id=s1", "name=peer", "version=1.2"); n != 1 {
			t.Errorf("%d records of the implementation", n)
		}
	})
}

// TestReaderSurvivesAnyCut cuts the runtime's bytes at every place.
func TestReaderSurvivesAnyCut(t *testing.T) {
	const said = "\r\n  \n"
	for cut := 1; ; cut++ {
		var all string
		bubble(t, func(t *testing.T, r *stage) {
			r.began(func(w wire) {
				all = said + chunk("héllo") + "\r\n" + answerLine(w, `{"stopReason":"end_turn"}`) + "\n"
				n := min(cut, len(all))
				r.stdout.set(func() { r.stdout.data = append(r.stdout.data, all[:n]...) })
				synctest.Wait()
				r.stdout.set(func() { r.stdout.data = append(r.stdout.data, all[n:]...) })
			})
			o := r.turn(t.Context())
			wantError(t, o.err, "")
			o.wants(t, "notification this session started with a declared capability gap in: token counts",
				"notification", "notification héllo")
		})
		if cut >= len(all) {
			return
		}
	}
}
