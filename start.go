package acp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// launch is a Config made ready: what every start of a session needs.
type launch struct {
	workspace string
	dir       string   // of the process: the workspace, or ours over SSH
	argv      []string // of the process; element zero resolved
	env       []string
	words     []string // of the command line, for a measurement source's claim
	preamble  []byte   // first on standard input; nil: none
	ssh       bool
	resume    string
	servers   []mcpServer
	verify    bool
	chunkText bool
	maxLine   int

	readTimeout, handshakeTimeout, grace time.Duration

	redact func(string) string
	record io.Writer
	log    *slog.Logger

	// spawn starts the process.
	spawn func(ctx context.Context, argv []string, dir string, env []string, log *slog.Logger) (*process, *Error)
}

// Start launches the runtime, does the handshake and creates or continues a
// session (SPEC 2). The session outlives ctx, which bounds the start alone. A
// failed start is torn down before Start returns.
func (a *Adapter) Start(ctx context.Context, c Config) (*Session, error) {
	a.forgetOld()
	l, err := plan(c)
	if err != nil {
		return nil, err
	}
	s, err := a.settleSource(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// plan checks a Config without starting anything.
func plan(c Config) (*launch, *Error) {
	l := &launch{
		workspace: c.Workspace, ssh: c.SSH != nil, resume: c.Resume, verify: c.Verify,
		chunkText: c.ChunkText, record: c.Record, redact: c.Redact, log: c.Logger, spawn: spawn,
		maxLine:     or(c.MaxLine, 10<<20),
		readTimeout: or(c.ReadTimeout, 30*time.Second),
		grace:       or(c.StopGrace, 5*time.Second),
	}
	l.handshakeTimeout = or(c.HandshakeTimeout, max(l.readTimeout, time.Minute))
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.log = l.log.With("component", "clientprotocol-adapter")
	if l.redact == nil {
		l.redact = func(s string) string { return s }
	}
	if err := checkWorkspace(c.Workspace); err != nil {
		return nil, err
	}
	if commandMissing(c.Command, c.Argv) {
		return nil, fail(ErrAgentNotFound, msgNoCommand, nil)
	}
	if err := l.command(c); err != nil {
		return nil, err
	}
	if c.MCPConfig != "" && !l.ssh {
		servers, err := parseMCP(c.MCPConfig)
		if err != nil {
			return nil, err
		}
		l.servers = servers
		for _, s := range servers {
			if len(s.unknown) > 0 {
				l.log.Debug("mcp server has keys that are ignored", "server", cleanLabel(s.name), "keys", cleanLine(strings.Join(s.unknown, " "), errorText))
			}
		}
	}
	l.hideSecrets(c)
	return l, nil
}

// hideSecrets makes redact hide what the MCP configuration and the passed
// variables hold, in case the runtime says it (SPEC 6, 11).
func (l *launch) hideSecrets(c Config) {
	var values, pairs []string
	if l.ssh {
		_, values, _ = passed(c.SSH.PassEnv, l.env) // its error was seen before
	}
	for _, text := range secretTexts(l.servers, values) {
		pairs = append(pairs, text, "[redacted]")
	}
	if pairs == nil {
		return
	}
	secrets, then := strings.NewReplacer(pairs...), l.redact
	l.redact = func(s string) string { return then(secrets.Replace(s)) }
}

// or returns v, or the default when v is zero or less.
func or[T int | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// command fills in what is started, where, and with which environment.
func (l *launch) command(c Config) *Error {
	l.env = c.Env
	if l.env == nil {
		l.env = os.Environ()
	}
	l.words = c.Argv
	if len(c.Argv) == 0 {
		l.words = strings.Fields(c.Command)
	}
	name, args := l.words[0], l.words[1:]
	if l.ssh {
		var err *Error
		if args, l.preamble, err = sshCommand(c.SSH, c.Workspace, c.Command, c.Argv, l.env); err != nil {
			return err
		}
		name = "ssh"
	} else {
		l.dir = c.Workspace
	}
	path, err := resolve(name)
	if err != nil {
		return err
	}
	l.argv = append([]string{path}, args...)
	l.env = append(l.env[:len(l.env):len(l.env)], "PWD="+c.Workspace)
	return nil
}

// checkWorkspace obeys SPEC 2.1.
func checkWorkspace(dir string) *Error {
	bad := func(what string, err error) *Error { return fail(ErrInvalidWorkspaceCWD, what, err) }
	switch {
	case dir == "":
		return bad("the workspace is empty", nil)
	case !filepath.IsAbs(dir):
		return bad("the workspace is not an absolute path: "+dir, nil)
	}
	fi, err := os.Lstat(filepath.Clean(dir)) // behind a slash at its end a link would be followed
	switch {
	case err != nil:
		return bad("the workspace cannot be used", err)
	case fi.Mode()&os.ModeSymlink != 0:
		return bad("the workspace is a symbolic link: "+dir, nil)
	case !fi.IsDir():
		return bad("the workspace is not a directory: "+dir, nil)
	}
	return nil
}

// settleSource starts the runtime, again if need be, until the process carries
// the settings of the measurement source that its handshake confirms (SPEC 9).
func (a *Adapter) settleSource(ctx context.Context, c *launch) (*Session, *Error) {
	var src source
	if !c.ssh {
		src = sourceFor(c.words)
	}
	for starts := 1; ; starts++ {
		s, err := a.handshake(ctx, c, src)
		if err != nil || c.ssh {
			return s, err
		}
		want := sourceNamed(s.agent.rawName)
		if want == src {
			return s, nil
		}
		if starts == maxStarts {
			s.dropSource()
			return s, nil
		}
		log := s.log.With("name", s.agent.name)
		if want == nil {
			log.Info("agent relaunched without usage settings meant for another runtime")
		} else {
			log.Info("agent relaunched so its token usage can be measured: agent.command does not name the runtime it starts")
		}
		if err := s.Stop(context.Background()); err != nil {
			return nil, asError(err)
		}
		src = want
	}
}

// dropSource lets the measurement go for the rest of the session.
func (s *Session) dropSource() {
	s.meter.dropped = true
	s.do(func(l *loop) {
		l.lower(&l.info.TokenCounts, "token counts")
		l.info.Source = ""
	})
}

func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return fail(ErrPortExit, err.Error(), err)
}

// handshake starts the runtime once and initializes it. A failed one is torn
// down when it returns.
func (a *Adapter) handshake(ctx context.Context, c *launch, src source) (*Session, *Error) {
	if ctx.Err() != nil {
		return nil, fail(ErrTurnCancelled, msgStartCancelled, context.Cause(ctx))
	}
	m, env, err := armSource(src)
	if err != nil {
		return nil, err
	}
	s, err := a.open(ctx, c, m, append(c.env[:len(c.env):len(c.env)], env...))
	if err != nil {
		_ = m.discard() // the failed launch is the news
		return nil, err
	}
	raw, cerr := s.call(ctx, c.handshakeTimeout, "initialize", initializeParams(), nil)
	if cerr != nil {
		return nil, s.fail("initialize", cerr)
	}
	s.agent = parseAgent(raw, c.redact)
	if s.agent.version1 {
		s.do(func(l *loop) {
			l.info.AgentName, l.info.AgentVersion = s.agent.name, s.agent.version
			if !s.agent.known {
				l.lower(&l.info.VersionKnown, "agent version")
			}
			if src != nil {
				l.info.Source = src.agent()
			}
		})
		return s, nil
	}
	return nil, s.fail("initialize", fail(ErrResponseError, fmt.Sprintf(
		"the agent speaks protocol version %s, this client speaks %d", s.agent.protocol, protocolVersion), nil))
}

const (
	protocolVersion   = 1
	maxStarts         = 3 // SPEC 9
	msgStartCancelled = "the start was cancelled"
	msgSSHFailed      = "the SSH connection failed"
	msgNoStderr       = "no standard-error output"
	phaseResume       = "continuation"
)

func initializeParams() any {
	type fs struct {
		Read  bool `json:"readTextFile"`
		Write bool `json:"writeTextFile"`
	}
	type capabilities struct {
		FS       fs   `json:"fs"`
		Terminal bool `json:"terminal"`
	}
	type info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	return struct {
		Version int          `json:"protocolVersion"`
		Caps    capabilities `json:"clientCapabilities"`
		Info    info         `json:"clientInfo"`
	}{protocolVersion, capabilities{}, info{"acp", moduleVersion()}}
}

// agentInfo is what the answer to initialize said.
type agentInfo struct {
	name, version string // cleaned
	rawName       string
	known         bool // there was an agentInfo
	version1      bool
	protocol      string // the version it named, in words
	methods       string // the authentication methods it offered, in words

	load, resume, close, delete, http, sse bool
}

func parseAgent(answer value, redact func(string) string) agentInfo {
	label := func(s string) string { return shown(s, labelText, redact) }
	info, caps := answer.get("agentInfo"), answer.get("agentCapabilities")
	sess, mcp := caps.get("sessionCapabilities"), caps.get("mcpCapabilities")
	a := agentInfo{
		rawName: info.get("name").str(), known: info.kind() == '{',
		load: caps.get("loadSession").yes(), resume: sess.get("resume").has(),
		close: sess.get("close").has(), delete: sess.get("delete").has(),
		http: mcp.get("http").yes(), sse: mcp.get("sse").yes(),
		methods: authMethods(answer.get("authMethods"), label), protocol: "none",
	}
	a.name, a.version = label(a.rawName), label(info.get("version").str())
	if v := answer.get("protocolVersion"); v.has() {
		a.protocol = label(string(v))
		n, err := strconv.ParseFloat(string(v), 64)
		a.version1 = err == nil && n == protocolVersion
	}
	return a
}

// authMethods lists the offered methods for a person, SPEC 12: 16 at most.
func authMethods(list value, label func(string) string) string {
	var names []string
	for _, m := range list.each {
		name, id := label(m.get("name").str()), label(m.get("id").str())
		switch {
		case name == "" || name == id:
			name = id
		case id != "":
			name += " (" + id + ")"
		}
		if name != "" {
			names = append(names, name)
		}
		if len(names) == 16 {
			break
		}
	}
	return strings.Join(names, ", ")
}

// fail tears a start down, with the full window, and says what it failed of.
func (s *Session) fail(phase string, err error) *Error {
	if stopErr := s.Stop(context.Background()); stopErr != nil {
		return asError(stopErr)
	}
	rpc, answered := errors.AsType[*rpcError](err)
	own, isOwn := errors.AsType[*Error](err)
	words := errors.New(orElse(s.end.lastErr, msgNoStderr))
	switch {
	case isOwn:
		return own
	case errors.Is(err, errLost):
		return s.end.startLoss(s.launch.ssh, words)
	case errors.Is(err, errTimedOut):
		return fail(ErrResponseTimeout, phase+": no answer in time", words)
	case answered && rpc.code == authRequired && phase != phaseResume:
		methods := orElse(s.agent.methods, "none")
		return fail(ErrCredentialUnverified, phase+": the agent asks for authentication; methods offered: "+methods, rpc)
	}
	return fail(ErrResponseError, phase+": "+err.Error(), nil)
}

// startLoss says how a start lost its connection (SPEC 2, early exit report).
func (e *epilogue) startLoss(ssh bool, words error) *Error {
	switch {
	case e.self && e.exit != nil && ssh && e.exit.code == 255:
		return fail(ErrPortExit, msgSSHFailed, words)
	case e.self && e.exit != nil:
		return fail(ErrPortExit, "the agent runtime exited before responding: "+e.exit.text, words)
	case e.lost != nil && !e.eof:
		return e.lost
	}
	return fail(ErrPortExit, "agent connection ended before responding", nil)
}

func orElse(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// moduleVersion is the version of this module in the program that holds it.
func moduleVersion() string {
	const path = "github.com/sortie-ai/acp"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == path && m.Version != "" && m.Version != "(devel)" {
				return m.Version
			}
		}
	}
	return "devel"
}
