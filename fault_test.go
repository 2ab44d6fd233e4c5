package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// The fault suite: what a runtime, its descendants, its caller or its machine
// can do wrong, over real processes, each with its documented outcome inside
// both bounds of its duration and with nothing left. Durations that depend on
// our own clock alone are checked exactly by the tests over memory.

// A fault is one row.
type fault struct {
	name   string
	steps  []string // what the runtime does
	args   []string // of the fake runtime
	config func(*acp.Config)
	cancel time.Duration // of the turn's context, counted from its call; 0: never

	start, turn, stop want

	during func(*faultRun) // beside the turn, from the start on, on a goroutine of its own
	then   func(*faultRun) // behind the turn
	after  func(*faultRun) // behind Stop, or behind the failed start
}

// want is how a call ends. The upper bound of its duration has slack.
type want struct {
	none     bool // there is no such call
	kind     acp.ErrorKind
	text     string        // in the error
	from, to time.Duration // to 0: not bounded but by the watchdog
}

func (w want) check(t *testing.T, call string, err error, took time.Duration) {
	t.Helper()
	if w.kind == "" && err != nil {
		t.Errorf("%s: %v", call, err)
	} else if w.kind != "" {
		wantKind(t, err, w.kind, w.text)
	}
	if took < w.from || w.to > 0 && took > w.to+slack() {
		t.Errorf("%s took %v, want %v to %v", call, took, w.from, w.to)
	}
}

// A faultRun is one run of a row.
type faultRun struct {
	*testing.T
	fake   *fake
	log    *records
	s      *acp.Session // nil if it did not start
	events []acp.Event  // of the last turn
	res    acp.Result
}

// runFaults runs rows side by side, with config unless a row has its own. Each
// looks for processes that it left; the census of the rest comes behind all.
func runFaults(t *testing.T, rows []fault, config ...func(*acp.Config)) {
	together(t)
	for _, f := range rows {
		if len(config) > 0 && f.config == nil {
			f.config = config[0]
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.run(t)
		})
	}
}

func (f fault) run(t *testing.T) {
	r := &faultRun{T: t, fake: steps(t, strings.Join(f.steps, ","), f.args...), log: &records{t: t}}
	r.fake.StopGrace = 2 * time.Second
	r.fake.Logger = slog.New(r.log)
	if f.config != nil {
		f.config(&r.fake.Config)
	}
	began := time.Now()
	var err error
	r.s, err = r.fake.start()
	f.start.check(t, "Start", err, time.Since(began))
	if err == nil {
		f.runSession(r)
	}
	if f.after != nil {
		f.after(r)
	}
	r.wantScript()
}

func (f fault) runSession(r *faultRun) {
	var beside sync.WaitGroup
	if f.during != nil {
		beside.Go(func() { f.during(r) })
	}
	if !f.turn.none {
		took, err := r.turn(f.cancel, "hello")
		f.turn.check(r.T, "RunTurn", err, took)
	}
	if f.then != nil {
		f.then(r)
	}
	beside.Wait()
	began := time.Now()
	err := r.s.Stop(context.Background())
	f.stop.check(r.T, "Stop", err, time.Since(began))
	select {
	case <-r.s.Done():
	default:
		r.Error("Done is not closed behind Stop")
	}
}

// turn runs one turn, which is cancelled after a while unless that is 0, and
// checks what holds for every one.
func (r *faultRun) turn(cancelled time.Duration, prompt string) (time.Duration, error) {
	r.Helper()
	r.events = nil
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if cancelled > 0 {
		ctx, cancel = context.WithTimeout(ctx, cancelled)
		defer cancel()
	}
	res, err := r.s.RunTurn(ctx, prompt, func(e acp.Event) { r.events = append(r.events, e) })
	took := time.Since(began)
	r.res = res
	if len(r.events) == 0 { // a refused one
		if err == nil || res != (acp.Result{}) {
			r.Errorf("a turn without events: %+v, %v", res, err)
		}
		return took, err
	}
	p := &play{T: r.T, session: r.s}
	p.wellFormed(r.events, res, err)
	for _, problem := range p.problems {
		r.Error(problem)
	}
	return took, err
}

// count returns how many events of the last turn are of that type and hold that
// text.
func (r *faultRun) count(typ acp.EventType, text string) (n int) {
	for _, e := range r.events {
		if e.Type == typ && strings.Contains(e.Message, text) {
			n++
		}
	}
	return n
}

// said is what the runtime's reply of the last turn says.
func (r *faultRun) said() string {
	var b strings.Builder
	for _, e := range r.events {
		b.WriteString(e.Text)
	}
	return b.String()
}

// report is what the runtime noted of its scenario so far.
func (r *faultRun) report() string {
	b, err := os.ReadFile(r.fake.report)
	if err != nil && !os.IsNotExist(err) {
		r.Error(err)
	}
	return string(b)
}

// wantScript fails the test when a step of the scenario has failed.
func (r *faultRun) wantScript() {
	r.Helper()
	if report := r.report(); strings.Contains(report, "failed ") {
		r.Errorf("the scenario says:\n%s", report)
	}
}

// await waits until the runtime has noted a line.
func (r *faultRun) await(note string) {
	r.Helper()
	end := time.Now().Add(30 * time.Second)
	for !strings.Contains(r.report(), note) {
		if time.Now().After(end) {
			r.Errorf("no %q in the scenario's report:\n%s", note, r.report())
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// killHolder ends the descendant that left the group, which is out of our reach
// and must still be there.
func (r *faultRun) killHolder() {
	r.Helper()
	_, rest, _ := strings.Cut(r.report(), "holder-pid: ")
	line, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(line)
	if err != nil || !alive(pid) {
		r.Errorf("the holder %q does not live, %v", line, err)
		return
	}
	holder, err := os.FindProcess(pid)
	if err != nil {
		r.Error(err)
		return
	}
	if err := errors.Join(holder.Kill(), holder.Release()); err != nil {
		r.Error(err)
	}
}

// records keeps a log.
type records struct {
	t     *testing.T
	attrs []slog.Attr
	all   *recordList
	once  sync.Once
}

type recordList struct {
	mu   sync.Mutex
	list []record
}

type record struct {
	level   slog.Level
	message string
	attrs   map[string]string // as they are, not quoted
}

func (h *records) book() *recordList {
	h.once.Do(func() {
		if h.all == nil {
			h.all = &recordList{}
		}
	})
	return h.all
}

func (h *records) Enabled(context.Context, slog.Level) bool { return true }
func (h *records) WithGroup(string) slog.Handler            { return h }

func (h *records) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &records{t: h.t, attrs: append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...), all: h.book()}
}

func (h *records) Handle(_ context.Context, r slog.Record) error {
	rec := record{r.Level, r.Message, make(map[string]string)}
	for _, a := range h.attrs {
		rec.attrs[a.Key] = a.Value.String()
	}
	r.Attrs(func(a slog.Attr) bool { rec.attrs[a.Key] = a.Value.String(); return true })
	b := h.book()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, rec)
	return nil
}

// find returns the records with that message.
func (h *records) find(message string) (list []record) {
	b := h.book()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.list {
		if r.message == message {
			list = append(list, r)
		}
	}
	return list
}

const (
	msgForced    = "agent did not exit inside the graceful period and was force-terminated"
	msgUndrained = "agent stdout was not fully collected before the session ended"
)

// wantForced checks the warning about a process that did not end by itself.
func (r *faultRun) wantForced(outcome string) {
	r.Helper()
	got := r.log.find(msgForced)
	if n := min(len(outcome), 1); len(got) != n || n == 1 && (got[0].attrs["outcome"] != outcome || got[0].level != slog.LevelWarn) {
		r.Errorf("forced: %v, want %q", got, outcome)
	}
}

// The steps of scenarios.

// initialized and created are the two answers of a start; prompted takes the
// prompt behind them.
var (
	initializedAnswer = send(`{"jsonrpc":"2.0","id":${id:initialize},"result":{"protocolVersion":1,` +
		`"agentCapabilities":{"sessionCapabilities":{"close":{}}},"agentInfo":{"name":"fault","version":"1"}}}`)
	createdAnswer = send(`{"jsonrpc":"2.0","id":${id:session/new},"result":{"sessionId":"s"}}`)
	initialized   = `{"expect":"initialize"},` + initializedAnswer
	created       = `{"expect":"session/new"},` + createdAnswer
	prompted      = initialized + "," + created + `,{"expect":"session/prompt"}`
	ended         = stopReason("end_turn")
)

// killed dies of SIGKILL.
const killed = `{"kill_self":true}`

// idle lives until it is killed or told to end.
const idle = `{"sleep_ms":60000}`

// half is the front of a line.
const half = `{"send":"{\"jsonrpc\":\"2.0\",\"method\":\"session/upd","eol":""}`

func quoteJSON(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

func send(line string) string { return `{"send":` + quoteJSON(line) + `}` }

func sendSeq(n int, line string) string {
	return `{"send_seq":{"n":` + strconv.Itoa(n) + `,"line":` + quoteJSON(line) + `}}`
}

func stopReason(reason string) string {
	return send(`{"jsonrpc":"2.0","id":${id:session/prompt},"result":{"stopReason":"` + reason + `"}}`)
}

// update is the line of a session/update.
func update(u string) string {
	return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":` + u + `}}`
}

// chunk is the line of a text chunk.
func chunk(text string) string {
	return update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + quoteJSON(text) + `}}`)
}

// amount is how much a flood brings: the full measure with ACP_HEAVY set, and
// else what every run of the tests has time for.
func amount(usual, full int) int {
	if os.Getenv("ACP_HEAVY") != "" {
		return full
	}
	return usual
}
