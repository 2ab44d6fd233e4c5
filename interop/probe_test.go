package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A probed is what `acp probe` must find out about a runtime, beside its Facts.
type probed struct {
	name string
	ci   bool // belongs to the smaller set

	resume          string // the route
	delete          bool
	http, sse       bool
	logins          []string
	asks            int // permission requests of the turn
	stdin, term     fate
	killed, killed1 fate // the group; its first process alone
}

// A fate is the exit of the first process and a piece of the name of what is
// left then; "": nothing.
type fate struct{ exit, left string }

var (
	exits      = fate{"exit status 0", ""}
	terminated = fate{"signal: terminated", ""}
	gone       = fate{"signal: killed", ""}
	stays      = "still running"
)

func leaves(name string) fate { return fate{"signal: killed", name} }

func probes() []probed {
	return []probed{
		{name: "gemini", ci: true, resume: "session/load", http: true, sse: true, asks: 1,
			logins: []string{"oauth-personal", "gemini-api-key", "vertex-ai", "gateway"},
			stdin:  exits, term: exits, killed: gone, killed1: leaves("node")},
		{name: "opencode", resume: "session/load", http: true, sse: true, logins: []string{"opencode-login"}, asks: 1,
			stdin: exits, term: terminated, killed: gone, killed1: gone},
		{name: "kilo", resume: "session/load", http: true, sse: true, logins: []string{"kilo-login"}, asks: 1,
			stdin: exits, term: terminated, killed: gone, killed1: leaves("kilo")},
		{name: "claude", ci: true, resume: "session/load", delete: true, http: true, sse: true, asks: 1,
			stdin: exits, term: exits, killed: gone, killed1: gone},
		{name: "codex", resume: "session/load", delete: true, http: true, logins: []string{"api-key"}, asks: 1,
			stdin: exits, term: terminated, killed: gone, killed1: gone},
		{name: "qwen", resume: "session/load", http: true, sse: true, logins: []string{"openai", "qwen-oauth"}, asks: 1,
			stdin: exits, term: terminated, killed: gone, killed1: leaves("node")},
		{name: "sdk", asks: 1, stdin: exits, term: terminated, killed: gone, killed1: gone},
		{name: "copilot", resume: "session/load", http: true, sse: true, logins: []string{"copilot-login"}, asks: 1,
			stdin: exits, term: terminated, killed: gone, killed1: leaves("MainThread")},
		{name: "cline", resume: "session/load", logins: []string{"cline", "cline-pass", "openai-codex"}, asks: 1,
			stdin: exits, term: fate{stays, "cline"}, killed: gone, killed1: gone},
		{name: "droid", resume: "session/load", logins: []string{"device-pairing", "factory-api-key"}, asks: 1,
			stdin: exits, term: exits, killed: gone, killed1: gone},
		{name: "pi", resume: "session/load", delete: true, logins: []string{"pi_terminal_login"},
			stdin: exits, term: exits, killed: gone, killed1: gone},
	}
}

// probeReport is the JSON form of a report, as docs/acp.1.md has it.
type probeReport struct {
	Fit      bool
	Reason   string
	Starts   bool
	Agent    struct{ Name, Version string }
	Protocol json.RawMessage `json:"protocol_version"`

	HandshakeMS  int64 `json:"handshake_ms"`
	Capabilities map[string]struct{ State, Reason string }
	Routes       struct {
		Resume        string
		Close, Delete bool
	}
	MCP  struct{ Stdio, HTTP, SSE bool } `json:"mcp_transports"`
	Auth struct {
		Needed  string
		Methods []struct{ ID, Name string }
	} `json:"authentication"`
	Noise       struct{ Lines int } `json:"stdout_noise"`
	Permissions struct{ Asked, Refused int }
	Tokens      struct {
		Measurable bool
		Source     string
		Measured   *bool
	}
	Turn *struct {
		ExitReason string `json:"exit_reason"`
		StopReason string `json:"stop_reason"`
		Error      *struct{ Kind, Message string }
	}
	Endings []struct {
		How, Exit string
		Left      []struct{ Name string }
	}
}

// acpCommand builds the command once.
var acpCommand = sync.OnceValues(func() (string, error) {
	name := filepath.Join(cacheDir(), "acp")
	out, err := exec.Command("go", "build", "-o", name, "github.com/sortie-ai/acp/cmd/acp").CombinedOutput() // #nosec G204 -- our own program
	if err != nil {
		return "", errors.New(string(out))
	}
	return name, nil
})

// TestProbe checks the report of `acp probe` against what is known of real
// runtimes: without a turn for the smaller set, with one for all.
func TestProbe(t *testing.T) {
	for _, p := range probes() {
		for _, prompt := range []string{"", "[[ask touch refused.txt]] please"} {
			name := p.name
			if prompt != "" {
				name += "-turn"
			}
			t.Run(name, func(t *testing.T) {
				if prompt == "" && !p.ci || prompt != "" && *set == "ci" {
					t.Skip("not in this set")
				}
				all := Runtimes()
				b := newBench(t, all[slices.IndexFunc(all, func(r Runtime) bool { return r.Name == p.name })])
				r := b.probe(prompt)
				p.checkOffer(b, r)
				p.checkTurn(b, r, prompt)
				p.checkEndings(b, r)
			})
		}
	}
}

func (b *bench) probe(prompt string) probeReport {
	b.Helper()
	program, err := acpCommand()
	b.must(err)
	l, err := b.rt.prepare(b.rt.Asks, b.dir, b.node, b.home, b.model.URL)
	b.must(err)
	args := []string{"probe", "-json", "-cwd", b.workspace, "-stop-grace", "20s",
		"-handshake-timeout", handshakeTimeout.String(), "-read-timeout", readTimeout.String()}
	if prompt != "" {
		args = append(args, "-prompt", prompt)
	}
	cmd := exec.CommandContext(b.ctx, program, slices.Concat(args, []string{"--"}, l.Argv)...) // #nosec G204 -- our own program
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(l.Env, markName+"="+b.mark), &out, &errs
	err = cmd.Run()
	b.Cleanup(func() {
		if b.Failed() {
			b.Logf("%v\n%s\n%s", err, out.String(), errs.String())
		}
	})
	var r probeReport
	b.must(json.Unmarshal(out.Bytes(), &r))
	if r.Fit != (err == nil) {
		b.Errorf("fit %v, %v", r.Fit, err)
	}
	for _, p := range b.left() {
		if !p.named(b.rt.Facts.Escapes) { // of the session with the turn
			b.Errorf("the probe left %v", p)
		}
	}
	return r
}

// checkOffer compares what the answer to initialize says.
func (p probed) checkOffer(b *bench, r probeReport) {
	f := b.rt.Facts
	version := Pins()[b.rt.pinName()].Version()
	if f.Version == "none" {
		version = ""
	}
	if !r.Starts || r.HandshakeMS <= 0 || r.Agent.Name != f.Agent || r.Agent.Version != version || string(r.Protocol) != "1" || r.Noise.Lines != 0 {
		b.Errorf("%+v", r)
	}
	if r.Routes.Resume != p.resume || r.Routes.Close != f.Close || r.Routes.Delete != p.delete {
		b.Errorf("routes %+v", r.Routes)
	}
	if !r.MCP.Stdio || r.MCP.HTTP != p.http || r.MCP.SSE != p.sse {
		b.Errorf("transports %+v", r.MCP)
	}
	var logins []string
	for _, m := range r.Auth.Methods {
		logins = append(logins, m.ID)
	}
	if !slices.Equal(logins, p.logins) || r.Auth.Needed != "no" {
		b.Errorf("authentication %+v", r.Auth)
	}
	for name, want := range map[string]bool{"tool_servers": true, "token_counts": f.Exact, "session_continuation": p.resume != "", "agent_version": version != ""} {
		if c := r.Capabilities[name]; (c.State == "delivered") != want || (c.State == "gap") == want || (c.Reason == "") != want {
			b.Errorf("%s: %+v", name, c)
		}
	}
}

// checkTurn compares what a turn showed, if one was asked for.
func (p probed) checkTurn(b *bench, r probeReport, prompt string) {
	f, tokens := b.rt.Facts, r.Tokens
	if tokens.Measurable != f.Exact || (tokens.Source != "") != f.Exact {
		b.Errorf("tokens %+v", tokens)
	}
	if prompt == "" {
		if r.Turn != nil || r.Permissions.Asked != 0 || tokens.Measured != nil || !r.Fit || len(b.model.Requests()) != 0 {
			b.Errorf("no turn was asked for: %+v", r)
		}
		return
	}
	if r.Permissions.Asked != p.asks || r.Permissions.Refused != p.asks {
		b.Errorf("permissions %+v", r.Permissions)
	}
	if tokens.Measured == nil || *tokens.Measured != f.Exact {
		b.Errorf("tokens %+v", tokens)
	}
	want := completed
	if p.asks > 0 {
		want = f.Refused
	}
	if r.Turn == nil || r.Turn.ExitReason != want.Reason || (r.Turn.Error != nil) != (want.Kind != "") ||
		r.Turn.Error != nil && (r.Turn.Error.Kind != want.Kind || !strings.Contains(r.Turn.Error.Message, want.Text)) {
		b.Errorf("turn %+v, want %+v", r.Turn, want)
	}
	if r.Fit != (want.Kind == "") || (r.Reason == "") != r.Fit {
		b.Errorf("fit %v, %q", r.Fit, r.Reason)
	}
}

func (p probed) checkEndings(b *bench, r probeReport) {
	want := map[string]fate{"end of input": p.stdin, "SIGTERM": p.term, "kill": p.killed, "kill of first alone": p.killed1}
	if len(r.Endings) != len(want) {
		b.Errorf("endings %+v", r.Endings)
	}
	for _, e := range r.Endings {
		w, names := want[e.How], []string{}
		for _, l := range e.Left {
			names = append(names, l.Name)
		}
		left := strings.Join(names, " ")
		if e.Exit != w.exit || (left == "") != (w.left == "") || !strings.Contains(left, w.left) {
			b.Errorf("after %s: %s, left %q; want %+v", e.How, e.Exit, left, w)
		}
	}
}
