package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// A scenario file says what the runtime does (script, which the fake runtime
// reads), what the client does, within which limits, and what must then be true.
type scenario struct {
	ID, Title, Kind, Basis, Policy, Note string
	Source                               []string
	InputClass                           string `json:"input_class"`
	Expected                             string // for the reader
	Client                               []action
	Limits                               limits
	Facts                                facts
	Script                               []map[string]json.RawMessage

	text         []byte // of the file, as it is played
	slowConsumer bool
}

// action is one entry of client. Its verb is the word it consists of, or the key
// that says what it is.
type action struct {
	verb          string
	Load          string
	Resume        string
	MayFail       bool `json:"may_fail"`
	Prompt        string
	PromptBytes   int `json:"prompt_bytes"`
	CancelAfterMS int `json:"cancel_after_ms"`
	IdleTimeoutMS int `json:"idle_timeout_ms"`
	IdleMS        int `json:"idle_ms"`
}

func (a *action) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, &a.verb)
	}
	type plain action
	if err := strict(b, (*plain)(a)); err != nil {
		return err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return err
	}
	for _, verb := range []string{"load", "resume", "prompt", "prompt_bytes", "idle_ms"} {
		if _, ok := keys[verb]; ok {
			a.verb = verb
			return nil
		}
	}
	return fmt.Errorf("client entry %s: no known word", b)
}

type limits struct {
	HandshakeMS   int `json:"handshake_ms"`
	CallMS        int `json:"call_ms"`
	CancelGraceMS int `json:"cancel_grace_ms"`
	TurnMS        int `json:"turn_ms"`
	IdleMS        int `json:"idle_ms"`
	CloseMS       int `json:"close_ms"`
	FastMS        int `json:"fast_ms"`
}

type facts struct {
	Stop       []string
	Raw        []string // the stop reason as sent
	Text       []string
	TextSuffix []string `json:"text_suffix"`
	LastText   *string  `json:"last_text"`
	TextSeq    int      `json:"text_seq"` // the last turn says 0;1; and so on
	Fails      string   // the start's call that fails
	Exit       *int     // the runtime reaches its own exit
	HolderDead bool     `json:"holder_dead"`
}

// alsoTrue are the rules of SPEC.md that a scenario's facts have no word for: the
// errors of its failures, in order.
var alsoTrue = map[string][]struct {
	kind acp.ErrorKind
	text string
}{
	"B05": {{acp.ErrTurnOutcomeUnknown, ""}},
	"B11": {{acp.ErrResponseTimeout, "initialize"}},
	"B18": {{acp.ErrResponseError, "boom"}, {acp.ErrResponseError, ""}},
	"B19": {{acp.ErrTurnCancelled, ""}},
	"B20": {
		{acp.ErrResponseError, "No provider configured"}, {acp.ErrResponseError, `{"details":"model retired"}`},
		{acp.ErrResponseError, "API error from upstream"}, {acp.ErrResponseError, "invalid_type"},
	},
	"B22": {{acp.ErrTurnInputRequired, "the agent asked for something only a person could give"}},
	"B24": {{acp.ErrResponseError, "2"}},
	"B28": {{acp.ErrResponseTimeout, "initialize"}},
	"B30": {{acp.ErrPortExit, "the agent runtime exited before responding: exit status 127: env: node: No such file or directory"}},
	"B32": {{acp.ErrPortExit, "exit status 0"}},
	"B33": {{acp.ErrPortExit, "exit status 3"}},
	"B50": {{acp.ErrTurnOutcomeUnknown, "error"}},
	"B54": {{acp.ErrTurnCancelled, ""}},
	"B55": {{acp.ErrTurnCancelled, ""}},
	"B57": {{acp.ErrTurnCancelled, ""}},
	"B58": {{acp.ErrTurnCancelled, ""}},
	"B70": {{acp.ErrCredentialUnverified, "cached"}},
}

// TestScenarios plays every file of testdata/scenarios against the package.
func TestScenarios(t *testing.T) {
	together(t)
	dir := filepath.Join("testdata", "scenarios")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, e := range entries {
		sc, err := readScenario(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Errorf("%s: %v", e.Name(), err) // a file that no test plays is an error too
			continue
		}
		known = append(known, sc.ID)
		t.Run(sc.ID, func(t *testing.T) {
			t.Parallel()
			for _, problem := range sc.play(t) {
				t.Error(problem)
			}
		})
		if sc.Facts.TextSeq == 0 {
			continue
		}
		t.Run(sc.ID+"/slow consumer", func(t *testing.T) {
			t.Parallel()
			slow := *sc
			slow.slowConsumer = true
			for _, problem := range slow.play(t) {
				t.Error(problem)
			}
		})
	}
	for id := range alsoTrue {
		if !slices.Contains(known, id) {
			t.Errorf("no scenario %s", id)
		}
	}
}

func readScenario(name string) (*scenario, error) {
	sc := &scenario{}
	b, err := os.ReadFile(name) // #nosec G304 -- of testdata
	if err != nil {
		return nil, err
	}
	if err := strict(b, sc); err != nil {
		return nil, err
	}
	if sc.ID == "" || len(sc.Client) == 0 || len(sc.Script) == 0 {
		return nil, errors.New("it lacks an id, a client or a script")
	}
	// The machine may be busy: the client acts later than the file says, and the
	// runtime waits longer for it.
	l := &sc.Limits
	times := []*int{&l.HandshakeMS, &l.CallMS, &l.CancelGraceMS, &l.TurnMS, &l.IdleMS}
	for i := range sc.Client {
		a := &sc.Client[i]
		times = append(times, &a.CancelAfterMS, &a.IdleTimeoutMS, &a.IdleMS)
	}
	for _, n := range times {
		*n *= 3
	}
	sc.text = within.ReplaceAll(b, []byte("${0}0"))
	return sc, nil
}

var within = regexp.MustCompile(`"within_ms": ?\d+`)

// strict decodes what it knows and nothing else.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// play is one run of a scenario.
type play struct {
	*scenario
	*testing.T
	fake    *fake
	session *acp.Session
	turns   []turn
	errs    []error // of the start and of the turns, those that failed

	problems []string
}

// Errorf notes what is not as it should be.
func (p *play) Errorf(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

type turn struct {
	acp.Result
	text string
}

// play plays the scenario and returns what was not as it should be.
func (sc *scenario) play(t *testing.T) []string {
	name := filepath.Join(t.TempDir(), "scenario.json")
	if err := os.WriteFile(name, sc.text, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &play{scenario: sc, T: t, fake: newFake(t, "-scenario", name)}
	cfg, l := &p.fake.Config, sc.Limits
	if l.CallMS > 0 && l.CancelGraceMS > 0 {
		t.Fatal("call_ms and cancel_grace_ms are the same timeout")
	}
	cfg.HandshakeTimeout = ms(l.HandshakeMS)
	if n := max(l.CallMS, l.CancelGraceMS); n > 0 {
		cfg.ReadTimeout = ms(n)
	}
	if l.CloseMS > 0 {
		cfg.StopGrace = ms(l.CloseMS) - time.Second
	}
	p.start()
	stopped := false
	for _, a := range sc.Client {
		switch a.verb {
		case "initialize", "new", "load", "resume": // Start does these
		case "prompt", "prompt_bytes":
			p.turn(a)
		case "idle_ms":
			time.Sleep(ms(a.IdleMS))
		case "close":
			p.stop()
			stopped = true
		default:
			t.Fatalf("client entry %q: no known word", a.verb)
		}
	}
	if p.session != nil && !stopped {
		p.stop()
	}
	p.check()
	if len(p.problems) > 0 {
		t.Logf("the wire:\n%.20000s", p.fake.wire.String())
	}
	return p.problems
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// slack is what may be added to an upper bound: a second, as many times as there
// are processes for a processor, now or in the last minute, the tests beside this
// one among them, and two at least; or, under Wine, where every start of a process
// takes long, five.
func slack() time.Duration {
	if runtime.GOOS == "windows" {
		return 5 * time.Second
	}
	b, _ := os.ReadFile("/proc/loadavg") // elsewhere it is two seconds
	var load, skip, now float64
	_, _ = fmt.Sscanf(string(b), "%g %g %g %g/", &load, &skip, &skip, &now)
	return time.Duration(min(max(max(load, now)/float64(runtime.NumCPU()), 2), 5) * float64(time.Second))
}

// inTime fails the test if what began then took longer than limit; 0 is none.
func (p *play) inTime(what string, began time.Time, limit time.Duration) {
	if took := time.Since(began); limit > 0 && took > limit+slack() {
		p.Errorf("%s took %v, limit %v", what, took, limit)
	}
}

func (p *play) start() {
	var load action
	for _, a := range p.Client {
		if a.verb == "load" || a.verb == "resume" {
			load = a
			p.fake.Resume = a.Load + a.Resume
		}
	}
	began := time.Now()
	var err error
	p.session, err = p.fake.start()
	if err != nil {
		p.inTime("the failed start", began, ms(p.Limits.FastMS))
		if p.Facts.Fails == "initialize" {
			p.inTime("the failed start", began, ms(p.Limits.HandshakeMS))
		}
		p.errs = append(p.errs, err)
		p.session = nil
		if p.Facts.Fails == "" {
			p.Fatal(err)
		}
		return
	}
	if p.Facts.Fails != "" {
		p.Errorf("the start succeeded, %s should have failed", p.Facts.Fails)
	}
	info := p.session.Info()
	if want := load.verb != "" && !load.MayFail; info.Resumed != want || info.SessionContinuation != (load.verb == "" || want) {
		p.Errorf("resumed %v, continuation %v (%s), want resumed %v",
			info.Resumed, info.SessionContinuation, info.Continuation, want)
	}
	if info.Resumed && p.session.ID() != p.fake.Resume {
		p.Errorf("resumed %q as %q", p.fake.Resume, p.session.ID())
	}
}

// turn runs one prompt and checks what is true of every turn.
func (p *play) turn(a action) {
	if p.session == nil {
		p.Fatal("a prompt without a session")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	after := func(n int) *time.Timer {
		if n == 0 {
			return nil
		}
		timer := time.AfterFunc(ms(n), cancel)
		p.Cleanup(func() { timer.Stop() })
		return timer
	}
	after(a.CancelAfterMS)
	after(p.Limits.TurnMS)
	idle := after(max(a.IdleTimeoutMS, p.Limits.IdleMS))
	var text strings.Builder
	var events []acp.Event
	onEvent := func(e acp.Event) {
		events = append(events, e)
		text.WriteString(e.Text)
		if idle != nil {
			idle.Reset(ms(max(a.IdleTimeoutMS, p.Limits.IdleMS)))
		}
		if p.slowConsumer {
			time.Sleep(100 * time.Microsecond)
		}
	}
	began := time.Now()
	res, err := p.session.RunTurn(ctx, a.Prompt+strings.Repeat("p", a.PromptBytes), onEvent)
	if err != nil {
		p.errs = append(p.errs, err)
		p.inTime("the failed turn", began, ms(p.Limits.FastMS))
	}
	if a.CancelAfterMS > 0 {
		p.inTime("the cancelled turn", began, ms(a.CancelAfterMS)+p.fake.ReadTimeout)
	}
	p.turns = append(p.turns, turn{res, text.String()})
	p.wellFormed(events, res, err)
}

// wellFormed checks SPEC 3: the first event, the one terminal event, and that
// result and error say the same.
func (p *play) wellFormed(events []acp.Event, res acp.Result, err error) {
	if len(events) < 2 || events[0].Type != acp.SessionStarted {
		p.Errorf("events %v, want session_started and an end", events)
		return
	}
	for i, e := range events {
		if e.SessionID != p.session.ID() || e.PID != p.session.PID() {
			p.Errorf("event %v is of session %q, PID %d", e.Type, e.SessionID, e.PID)
		}
		switch e.Type {
		case acp.TurnCompleted, acp.TurnFailed, acp.TurnCancelled, acp.TurnInputRequired:
			if i != len(events)-1 || e.Type != res.ExitReason {
				p.Errorf("event %d of %d is %v, result %v", i+1, len(events), e.Type, res.ExitReason)
			}
		default:
			if i == len(events)-1 {
				p.Errorf("the last event is %v", e.Type)
			}
		}
	}
	if (err == nil) != (res.ExitReason == acp.TurnCompleted) {
		p.Errorf("error %v, result %v", err, res.ExitReason)
	}
	var e *acp.Error
	if last := events[len(events)-1].Message; err != nil && (!errors.As(err, &e) || e.Message != last) {
		p.Errorf("error %v, the last event says %q", err, last)
	}
}

func (p *play) stop() {
	began := time.Now()
	if err := p.session.Stop(context.Background()); err != nil {
		p.Errorf("Stop: %v", err)
	}
	limit := 8 * time.Second
	if p.Limits.CloseMS > 0 {
		limit = ms(p.Limits.CloseMS)
	}
	p.inTime("Stop", began, limit)
	select {
	case <-p.session.Done():
	default:
		p.Errorf("Done is not closed behind Stop")
	}
}
