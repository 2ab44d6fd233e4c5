package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/sortie-ai/acp"
)

// A report is what `acp probe` found out, and its JSON form.
type report struct {
	Fit          bool             `json:"fit"`
	Reason       string           `json:"reason"` // why not fit
	Command      []string         `json:"command"`
	Starts       bool             `json:"starts"` // initialize was answered
	HandshakeMS  int64            `json:"handshake_ms"`
	Agent        agentLine        `json:"agent"`
	Protocol     json.RawMessage  `json:"protocol_version"` // as answered
	Capabilities capabilityReport `json:"capabilities"`
	Routes       routeReport      `json:"routes"`
	MCP          mcpReport        `json:"mcp_transports"`
	Auth         authReport       `json:"authentication"`
	Noise        noiseReport      `json:"stdout_noise"`
	Permissions  permissionReport `json:"permissions"`
	Tokens       tokenReport      `json:"tokens"`
	Turn         *turnReport      `json:"turn"` // null: none was asked for
	Endings      []ending         `json:"endings"`
}

type capability struct {
	State  string `json:"state"` // delivered, gap or unknown
	Reason string `json:"reason"`
}

type capabilityReport struct {
	ToolServers         capability `json:"tool_servers"`
	TokenCounts         capability `json:"token_counts"`
	SessionContinuation capability `json:"session_continuation"`
	AgentVersion        capability `json:"agent_version"`
}

type routeReport struct {
	Resume string `json:"resume"` // the method; empty: none
	Close  bool   `json:"close"`
	Delete bool   `json:"delete"`
}

type mcpReport struct {
	Stdio bool `json:"stdio"` // every runtime must
	HTTP  bool `json:"http"`
	SSE   bool `json:"sse"`
}

type authReport struct {
	Needed  string       `json:"needed"` // yes, no or unknown
	Methods []authMethod `json:"methods"`
}

type authMethod struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type noiseReport struct {
	Lines int    `json:"lines"`
	First string `json:"first"`
}

type permissionReport struct {
	Asked   int `json:"asked"`
	Refused int `json:"refused"` // by an option that refuses; the others were cancelled
}

type tokenReport struct {
	Measurable bool   `json:"measurable"`
	Source     string `json:"source"`
	Measured   *bool  `json:"measured"` // null: no turn was run
}

type turnReport struct {
	ExitReason acp.EventType `json:"exit_reason"`
	StopReason string        `json:"stop_reason"`
	Error      *errorLine    `json:"error"`
}

// An ending is what became of the runtime, idle with one session open, when it
// was ended in one way.
type ending struct {
	How     string        `json:"how"`
	Exit    string        `json:"exit"`     // status, "still running" or "unknown"
	AfterMS int64         `json:"after_ms"` // until the exit
	Left    []leftProcess `json:"left"`     // what still ran when the wait was over
}

type leftProcess struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// probe is `acp probe`.
func probe(s *settings) int {
	cfg, err := s.config()
	if err != nil {
		return wrongUsage("acp probe", err)
	}
	j := newJob("acp probe", s)
	if cfg.Logger, err = j.logger(); err != nil {
		return wrongUsage("acp probe", err)
	}
	j.finals = append(j.finals, j.say.drainTo(os.Stderr))
	stopWatching := j.watch()
	r := j.examine(cfg)
	stopWatching()
	if context.Cause(j.ctx) == nil {
		r.show(j.out, s.json)
	}
	var e end
	if !r.Fit {
		e.err = errors.New(r.Reason)
	}
	return j.finish(e, nil)
}

// examine runs one session through the package and then ends the runtime in
// each way, if it got that far.
func (j *job) examine(cfg acp.Config) *report {
	w := &wire{}
	cfg.Record = w
	r := &report{Command: cfg.Argv, Endings: []ending{}, MCP: mcpReport{Stdio: true}}
	info, err := j.probeSession(cfg, r)
	r.wire(w)
	r.judge(info, err)
	if r.Starts {
		r.Endings = endings(j.ctx, cfg)
	}
	return r
}

// probeSession starts a session, runs a turn if one was asked for, and stops.
// Info is nil if it did not start.
func (j *job) probeSession(cfg acp.Config, r *report) (*acp.Info, error) {
	a, err := acp.New(nil)
	if err != nil {
		return nil, err
	}
	s, err := a.Start(j.ctx, cfg)
	if err != nil {
		return nil, err
	}
	j.live.set(s)
	defer j.live.set(nil) // what follows is not its to kill
	if len(j.set.prompts) == 1 {
		err = j.probeTurn(s, r)
	}
	info := s.Info()
	return &info, errors.Join(err, s.Stop(context.Background()))
}

func (j *job) probeTurn(s *acp.Session, r *report) error {
	ctx := j.ctx
	if d := j.set.turnTimeout; d > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, d, errors.New("the turn took longer than "+d.String()))
		defer done()
	}
	res, err := s.RunTurn(ctx, j.set.prompts[0], nil)
	r.Turn = &turnReport{res.ExitReason, oneLine(res.StopReason), errorOf(err)}
	r.Permissions.Refused = res.Refused
	r.Tokens.Measured = &res.Measured
	return err
}

// wire takes over what the transcript showed.
func (r *report) wire(w *wire) {
	r.Starts = w.answered
	r.HandshakeMS = w.handshakeMS
	r.Noise = noiseReport{w.noise, w.firstNoise}
	r.Permissions.Asked = w.permissions
	r.Auth.Methods = w.authMethods()
	c := w.capabilities()
	r.Protocol = c.protocol
	r.MCP.HTTP, r.MCP.SSE = c.http, c.sse
	r.Routes = routeReport{c.resumeRoute(), c.close, c.remove}
	r.Agent = c.agent
}

// judge fills in what depends on how the session went, and the verdict.
func (r *report) judge(info *acp.Info, err error) {
	r.Capabilities = capabilitiesReport(info)
	r.Auth.Needed = "unknown"
	if info != nil {
		r.Auth.Needed = "no"
		r.Agent = agentLine{info.AgentName, info.AgentVersion}
		r.Tokens.Measurable, r.Tokens.Source = info.TokenCounts, info.Source
	}
	if err == nil {
		r.Fit = true
		return
	}
	r.Reason = oneLine(err.Error())
	var e *acp.Error
	if errors.As(err, &e) && e.Kind == acp.ErrCredentialUnverified || strings.Contains(r.Reason, "-32000") {
		r.Auth.Needed = "yes"
	}
}

func capabilitiesReport(i *acp.Info) capabilityReport {
	if i == nil {
		c := capability{"unknown", "the session did not start"}
		return capabilityReport{c, c, c, c}
	}
	say := func(delivered bool, gap string) capability {
		if delivered {
			return capability{State: "delivered"}
		}
		return capability{"gap", gap}
	}
	return capabilityReport{
		ToolServers:         say(i.ToolServers, "a configured server was withheld: the runtime does not advertise its transport"),
		TokenCounts:         say(i.TokenCounts, "no measurement source knows this runtime, and the protocol carries no spend"),
		SessionContinuation: say(i.SessionContinuation, "neither loadSession nor sessionCapabilities.resume is advertised"),
		AgentVersion:        say(i.VersionKnown, "the answer to initialize has no agentInfo"),
	}
}
