package acp_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// What follows is an orchestrator's adapter over this package, whole: start a
// session, run turns, stop. docs/SORTIE.md explains it point by point.

// sessionParams is what an orchestrator knows when it starts a session.
type sessionParams struct {
	Workspace, Command, ResumeID string
	Block                        map[string]any // the agent-client-protocol block
	WorkflowDir, GeneratedMCP    string
	SSH                          *acp.SSH // nil: a local launch
	ReadTimeout, StopGrace       time.Duration
	Verify                       bool
	Redact                       func(string) string
	Logger                       *slog.Logger
}

// orchestrator is what an orchestrator brings along: the error kinds it knows,
// and how long its shutdown waits for a session.
type orchestrator struct {
	kinds []acp.ErrorKind
	drain time.Duration
}

// agentError is an error as an orchestrator schedules by it.
type agentError struct {
	Kind  acp.ErrorKind
	Retry bool // with exponential backoff
	Err   error
}

func (e *agentError) Error() string { return string(e.Kind) + ": " + e.Err.Error() }
func (e *agentError) Unwrap() error { return e.Err }

// adapter drives runtimes for an orchestrator.
type adapter struct {
	orchestrator
	acp *acp.Adapter
}

// StartSession may be silent for a minute and more: see docs/SORTIE.md.
func (a *adapter) StartSession(ctx context.Context, p sessionParams) (*acp.Session, error) {
	if least := p.ReadTimeout + p.StopGrace + 3*time.Second; least >= a.drain {
		return nil, fmt.Errorf("a shutdown within %v cannot wait for a turn and a stop, which may take %v", a.drain, least)
	}
	if operators, _ := p.Block["mcp_config"].(string); p.SSH == nil {
		if err := acp.MergeMCPConfig(operators, p.WorkflowDir, p.GeneratedMCP); err != nil {
			return nil, a.classify(err)
		}
	}
	s, err := a.acp.Start(ctx, acp.Config{
		Workspace: p.Workspace, Command: p.Command, Resume: p.ResumeID, MCPConfig: p.GeneratedMCP, SSH: p.SSH,
		ReadTimeout: p.ReadTimeout, StopGrace: p.StopGrace, Verify: p.Verify, Redact: p.Redact, Logger: p.Logger,
	})
	if err != nil {
		return nil, a.classify(err)
	}
	return s, nil
}

// turnTimeout is a kind of the orchestrator's own: the package has no timeout
// of a turn.
const turnTimeout acp.ErrorKind = "turn_timeout"

var errTurnTimeout = errors.New("the turn took too long")

// RunTurn hands the turn's events to emit, thinned.
func (a *adapter) RunTurn(ctx context.Context, s *acp.Session, prompt string, limit time.Duration, emit func(acp.Event)) (acp.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTurnTimeout)
	defer cancel()
	result, err := s.RunTurn(ctx, prompt, thinned(emit))
	return result, a.classify(err)
}

// StopSession may take the stop grace and 3 s.
func (a *adapter) StopSession(ctx context.Context, s *acp.Session) error {
	return a.classify(s.Stop(ctx))
}

// thinned holds back signs of life, the notifications without a message that
// come with each chunk of a reply, unless nothing has come for a second. An
// orchestrator's queue that is full drops what comes next, whatever it is.
func thinned(emit func(acp.Event)) func(acp.Event) {
	var last time.Time
	return func(e acp.Event) {
		if e.Type == acp.Notification && e.Message == "" && e.Time.Sub(last) < time.Second {
			return
		}
		last = e.Time
		emit(e)
	}
}

// classify gives an error the kind that the orchestrator knows. It retries what
// it does not know, so a kind that must not be retried may not reach it: a
// person has to look instead.
func (a *adapter) classify(err error) error {
	var e *acp.Error
	if !errors.As(err, &e) {
		return err
	}
	kind, retry := e.Kind, e.Kind.Retryable()
	switch {
	case errors.Is(err, errTurnTimeout):
		kind, retry = turnTimeout, true
	case slices.Contains(a.kinds, kind):
	case retry:
		kind = acp.ErrTurnFailed
	default:
		kind = acp.ErrTurnInputRequired
	}
	return &agentError{kind, retry, err}
}

// The tests of the adapter.

// olderKinds are those of an orchestrator that lacks five of the package's.
var olderKinds = []acp.ErrorKind{
	acp.ErrAgentNotFound, acp.ErrInvalidWorkspaceCWD, acp.ErrResponseTimeout, acp.ErrPortExit,
	acp.ErrResponseError, acp.ErrTurnFailed, acp.ErrTurnCancelled, acp.ErrTurnInputRequired, turnTimeout,
}

func newAdapter(t *testing.T) *adapter {
	t.Helper()
	inner, err := acp.New(map[string]any{"mcp_config": "servers.json"})
	if err != nil {
		t.Fatal(err)
	}
	return &adapter{orchestrator{olderKinds, 30 * time.Second}, inner}
}

// params prepares a session with the fake runtime, which inherits our
// environment.
func (f *fake) params() sessionParams {
	name, value, _ := strings.Cut(f.mark, "=")
	f.t.Setenv(name, value)
	return sessionParams{
		Workspace: f.Workspace, Command: strings.Join(f.Argv, " "),
		ReadTimeout: 5 * time.Second, StopGrace: 5 * time.Second, Logger: f.Logger,
	}
}

func (a *adapter) mustStart(t *testing.T, p sessionParams) *acp.Session {
	t.Helper()
	s, err := a.StartSession(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.StopSession(context.Background(), s); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A turn of 20,000 chunks, two tool calls and a malformed line reaches an
// orchestrator whose queue holds 256 and is not read meanwhile: nothing but
// signs of life was held back.
func TestSortieThinning(t *testing.T) {
	census(t)
	update := func(u string) string {
		return `{\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{` + strings.ReplaceAll(u, `"`, `\"`) + `}}}`
	}
	chunks := `{"send_seq":{"n":10000,"line":"` + update(`"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word "}`) + `"}}`
	tool := func(id string) string {
		return `{"send":"` + update(`"sessionUpdate":"tool_call_update","toolCallId":"`+id+`","kind":"edit","status":"completed"`) + `"}`
	}
	f := steps(t, strings.Join([]string{
		`{"expect":"initialize"}`, `{"send":"{\"id\":${id:initialize},\"result\":{\"protocolVersion\":1}}"}`,
		`{"expect":"session/new"}`, `{"send":"{\"id\":${id:session/new},\"result\":{\"sessionId\":\"s\"}}"}`,
		`{"expect":"session/prompt"}`, chunks, tool("1"), `{"send":"no JSON"}`, chunks, tool("2"),
		`{"send":"{\"id\":${id:session/prompt},\"result\":{\"stopReason\":\"end_turn\"}}"}`,
	}, ","))
	a := newAdapter(t)
	s := a.mustStart(t, f.params())

	queue := make(chan acp.Event, 256)
	var dropped []acp.Event // by the orchestrator
	var all []acp.Event     // that the package delivered
	thin := thinned(func(e acp.Event) {
		select {
		case queue <- e:
		default:
			dropped = append(dropped, e)
		}
	})
	if _, err := s.RunTurn(context.Background(), "go", func(e acp.Event) { all = append(all, e); thin(e) }); err != nil {
		t.Error(err)
	}
	close(queue)
	if len(all) < 20000 || len(dropped) > 0 {
		t.Errorf("%d events came, the orchestrator dropped %d", len(all), len(dropped))
	}
	var thinnedOut []acp.Event
	for e := range queue {
		thinnedOut = append(thinnedOut, e)
	}
	signOfLife := func(e acp.Event) bool { return e.Type == acp.Notification && e.Message == "" }
	signs := len(thinnedOut)
	all = slices.DeleteFunc(all, signOfLife)
	thinnedOut = slices.DeleteFunc(thinnedOut, signOfLife)
	if !slices.Equal(all, thinnedOut) || len(all) < 7 {
		t.Errorf("came:\n%+v\nhanded on:\n%+v", all, thinnedOut)
	}
	signs -= len(thinnedOut)
	if took := all[len(all)-1].Time.Sub(all[0].Time); signs > int(took/time.Second)+1 {
		t.Errorf("%d signs of life in %v", signs, took)
	}
}

// A long reply gives one sign of life a second.
func TestSortieSignsOfLife(t *testing.T) {
	start := time.Now()
	var got []time.Duration
	f := thinned(func(e acp.Event) { got = append(got, e.Time.Sub(start)) })
	for at := range 35 {
		f(acp.Event{Type: acp.Notification, Time: start.Add(time.Duration(at) * 100 * time.Millisecond)})
	}
	f(acp.Event{Type: acp.ToolResult, Time: start.Add(3500 * time.Millisecond)})
	f(acp.Event{Type: acp.Notification, Time: start.Add(4400 * time.Millisecond)})
	f(acp.Event{Type: acp.Notification, Time: start.Add(4500 * time.Millisecond)})
	want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 3500 * time.Millisecond, 4500 * time.Millisecond}
	if !slices.Equal(got, want) {
		t.Errorf("handed on at %v, want %v", got, want)
	}
}

// Every kind of the package reaches an older orchestrator as one it knows, and
// none that must not be retried as one that it retries.
func TestSortieErrorKinds(t *testing.T) {
	tests := []struct {
		kind, older acp.ErrorKind
		retry       bool
	}{
		{acp.ErrAgentNotFound, acp.ErrAgentNotFound, false},
		{acp.ErrInvalidWorkspaceCWD, acp.ErrInvalidWorkspaceCWD, false},
		{acp.ErrResponseTimeout, acp.ErrResponseTimeout, true},
		{acp.ErrPortExit, acp.ErrPortExit, true},
		{acp.ErrResponseError, acp.ErrResponseError, true},
		{acp.ErrTurnFailed, acp.ErrTurnFailed, true},
		{acp.ErrTurnCancelled, acp.ErrTurnCancelled, false},
		{acp.ErrTurnRefused, acp.ErrTurnInputRequired, false},
		{acp.ErrTurnTokenLimit, acp.ErrTurnInputRequired, false},
		{acp.ErrTurnRequestLimit, acp.ErrTurnFailed, true},
		{acp.ErrTurnOutcomeUnknown, acp.ErrTurnInputRequired, false},
		{acp.ErrTurnInputRequired, acp.ErrTurnInputRequired, false},
		{acp.ErrCredentialUnverified, acp.ErrTurnFailed, true},
	}
	for _, test := range tests {
		var old, recent *agentError
		err := &acp.Error{Kind: test.kind}
		a := newAdapter(t)
		if !errors.As(a.classify(err), &old) || old.Kind != test.older || old.Retry != test.retry || old.Retry != retriedByKind(old.Kind) {
			t.Errorf("%s is %+v for an older orchestrator, want %s %v", test.kind, old, test.older, test.retry)
		}
		a.kinds = []acp.ErrorKind{test.kind}
		if !errors.As(a.classify(err), &recent) || recent.Kind != test.kind || recent.Retry != test.retry {
			t.Errorf("%s is %+v for one that knows it", test.kind, recent)
		}
	}
}

// retriedByKind is what an older orchestrator makes of a kind.
func retriedByKind(k acp.ErrorKind) bool {
	return !slices.Contains([]acp.ErrorKind{acp.ErrAgentNotFound, acp.ErrInvalidWorkspaceCWD, acp.ErrTurnCancelled, acp.ErrTurnInputRequired}, k)
}

// The turn timeout is the orchestrator's, a stop is not, and the session
// survives both.
func TestSortieTurnTimeout(t *testing.T) {
	census(t)
	a := newAdapter(t)
	s := a.mustStart(t, newFake(t, "-plain").params())
	stop, cancel := context.WithCancel(context.Background())
	tests := []struct {
		prompt string
		ctx    context.Context
		limit  time.Duration
		emit   func(acp.Event)
		kind   acp.ErrorKind
		retry  bool
	}{
		{"slow", context.Background(), 200 * time.Millisecond, func(acp.Event) {}, turnTimeout, true},
		{"slow", stop, time.Minute, func(acp.Event) { cancel() }, acp.ErrTurnCancelled, false},
		{"refuse", context.Background(), time.Minute, func(acp.Event) {}, acp.ErrTurnInputRequired, false},
		{"long 1", context.Background(), time.Minute, func(acp.Event) {}, "", false},
	}
	for _, test := range tests {
		_, err := a.RunTurn(test.ctx, s, test.prompt, test.limit, test.emit)
		var e *agentError
		if errors.As(err, &e) != (test.kind != "") || e != nil && (e.Kind != test.kind || e.Retry != test.retry) {
			t.Errorf("%s: %v, want %s", test.prompt, err, cmp.Or(test.kind, "none"))
		}
	}
}

// The operator's servers reach a local session, the redaction hook sees the
// runtime's words, and settings that a shutdown cannot wait for are refused.
func TestSortieStart(t *testing.T) {
	census(t)
	a := newAdapter(t)
	dir := t.TempDir()
	generated := filepath.Join(dir, "mcp.json")
	for name, text := range map[string]string{
		generated:                         `{"mcpServers":{"sortie-tools":{"command":"sortie"}}}`,
		filepath.Join(dir, "theirs.json"): `{"mcpServers":{"search":{"command":"search"}}}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := steps(t, `{"expect":"initialize"},{"send":"{\"id\":${id:initialize},\"result\":{\"protocolVersion\":1}}"},`+
		`{"expect":"session/new","require":{"params.mcpServers.0.name":{"equals":"search"},"params.mcpServers.1.name":{"equals":"sortie-tools"}}},`+
		`{"stderr":"the token is hunter2\n"},{"exit":3}`)
	p := f.params()
	p.Block, p.WorkflowDir, p.GeneratedMCP = map[string]any{"mcp_config": "theirs.json"}, dir, generated
	p.Redact = strings.NewReplacer("hunter2", "[hidden]").Replace
	_, err := a.StartSession(context.Background(), p)
	var e *agentError
	if !errors.As(err, &e) || e.Kind != acp.ErrPortExit || !strings.Contains(err.Error(), "exit status 3: the token is [hidden]") {
		t.Error(err)
	}

	p.SSH = &acp.SSH{Host: "-oProxyCommand=x"}
	if _, err := a.StartSession(context.Background(), p); !errors.As(err, &e) || e.Kind != acp.ErrAgentNotFound {
		t.Error(err)
	}
	p.ReadTimeout = 22 * time.Second
	if _, err := a.StartSession(context.Background(), p); err == nil || !strings.Contains(err.Error(), "30s") {
		t.Error(err)
	}
}
