// Package acp drives a coding-agent runtime that speaks the Agent Client
// Protocol, unattended: newline-delimited JSON-RPC 2.0 over the standard input
// and output of one subprocess, local or behind ssh, that lives for the whole
// session.
//
// Three calls make a run: [Adapter.Start] launches the runtime, does the
// handshake and creates or continues a session; [Session.RunTurn] sends one
// prompt, delivers events while the answer streams and says how the turn
// ended; [Session.Stop] tears everything down.
//
// # Lifecycle
//
// A session has one turn in flight at a time. Every turn begins with
// [SessionStarted] and ends with exactly one of [TurnCompleted], [TurnFailed],
// [TurnCancelled] and [TurnInputRequired]. When the connection is lost the
// session tears itself down; [Session.Done] tells. Stop may be called at any
// time, from anywhere, any number of times.
//
// The rules are those of docs/SPEC.md; "SPEC 3" is its section 3.
//
// # Limits
//
// A line of the runtime holds at most 10 MiB, 1,024 events wait between turns,
// 4 MiB of our answers wait to be written, 64 KiB of standard error are kept.
// Every wait has a bound: the read timeout, the stop grace, or one of the
// durations that docs/AUDIT.md lists.
//
// # Trust
//
// Everything the runtime says is taken as hostile. Its text leaves the package
// bounded and without control sequences. Permission requests are refused;
// that is not a sandbox, since a runtime may act without asking.
//
// # What it does not do
//
// It retries nothing, authenticates nowhere, offers no file system and no
// terminal, and has no default runtime.
package acp

import (
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"time"
)

// Kind is the agent kind that this package implements.
const Kind = "agent-client-protocol"

// Settings is what [Validate] looks at: a caller's configuration before
// anything is started.
type Settings struct {
	Block        map[string]any // the agent-client-protocol block; nil: none
	Command      string         // agent.command as a string
	Argv         []string       // agent.command as a list
	SSH          bool           // the runtime would be launched over SSH
	TokenCeiling bool           // a token ceiling is set
	Priced       bool           // this kind has a price
}

// Severity says whether a [Diagnostic] stops a run.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// A Diagnostic is one finding of [Validate].
type Diagnostic struct {
	Check    string
	Severity Severity
	Message  string
}

// Validate checks a configuration. It starts no process and builds no adapter,
// and gives the same verdict wherever it is asked.
func Validate(s Settings) []Diagnostic {
	var ds []Diagnostic
	add := func(check string, sev Severity, msg string) {
		ds = append(ds, Diagnostic{check, sev, msg})
	}
	if commandMissing(s.Command, s.Argv) {
		add("agent.command", SeverityError, msgNoCommand)
	}
	if msg := mcpConfigType(s.Block); msg != "" {
		add("agent-client-protocol.mcp_config.wrong_type", SeverityError, msg)
	}
	if v, ok := s.Block["effort"]; ok && v != nil && v != "" {
		add("agent.effort.not_forwarded", SeverityWarning,
			"effort has no effect for this kind: write the runtime's own option in agent.command")
	}
	if s.SSH && s.TokenCeiling {
		add("agent.kind.no_usage_reporting", SeverityWarning,
			"over SSH this kind reports no token usage, so the token ceiling cannot be reached")
	}
	if s.SSH && s.Priced {
		add("agent.kind.no_cost_estimate", SeverityWarning,
			"over SSH this kind reports no token usage, so no cost can be estimated")
	}
	return ds
}

const msgNoCommand = `agent.command is required for agent kind "agent-client-protocol"`

// commandMissing reports whether neither form of the command names a program.
func commandMissing(command string, argv []string) bool {
	if len(argv) > 0 {
		return argv[0] == ""
	}
	return strings.TrimSpace(command) == ""
}

// mcpConfigType returns what is wrong with the type of mcp_config, or "".
func mcpConfigType(block map[string]any) string {
	v, ok := block["mcp_config"]
	if !ok || v == nil {
		return ""
	}
	const format = "mcp_config: expected string, got %s"
	if _, ok := v.(time.Time); ok {
		return fmt.Sprintf(format, "timestamp")
	}
	switch reflect.TypeOf(v).Kind() {
	case reflect.String:
		return ""
	case reflect.Bool:
		return fmt.Sprintf(format, "boolean")
	case reflect.Float32, reflect.Float64:
		return fmt.Sprintf(format, "float")
	case reflect.Slice, reflect.Array:
		return fmt.Sprintf(format, "list")
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return fmt.Sprintf(format, "mapping")
	default:
		return fmt.Sprintf(format, "integer")
	}
}

// UsageReporting says when token usage arrives and what it is attributed to:
// "turn_end" and "per_model" for a local launch, "none" twice over SSH.
func UsageReporting(ssh bool) (arrival, attribution string) {
	if ssh {
		return "none", "none"
	}
	return "turn_end", "per_model"
}

// Config is what one session needs. Only Workspace and a command are required.
type Config struct {
	// Workspace is the directory the runtime works in: absolute, existing, a
	// directory and not a symbolic link. It is checked on this machine, over
	// SSH too.
	Workspace string
	// Command is the runtime's command line, split on white space. Over SSH it
	// travels as it stands to the remote shell.
	Command string
	// Argv, when not empty, wins over Command and is taken as it stands. Over
	// SSH it is quoted word by word.
	Argv []string
	// Resume is the session ID of an earlier run to continue; empty: none.
	Resume string
	// MCPConfig is the path of the MCP configuration; empty: no servers. Over
	// SSH it is not read.
	MCPConfig string
	// SSH launches the runtime on another host; nil: here.
	SSH *SSH
	// Env is the runtime's environment; nil: the parent's, empty: none. PWD and
	// a measurement source's variables are appended.
	Env []string
	// ReadTimeout bounds every wait for the runtime; 0 or less: 30 s.
	ReadTimeout time.Duration
	// HandshakeTimeout bounds initialize alone; 0 or less: the larger of
	// ReadTimeout and 60 s.
	HandshakeTimeout time.Duration
	// StopGrace is the window of the teardown; 0 or less: 5 s.
	StopGrace time.Duration
	// Verify makes this a credential-verification session: it is sent no MCP
	// servers and ends by session/delete where the runtime has it.
	Verify bool
	// MaxLine bounds a line of the runtime in bytes, without its newline; 0 or
	// less: 10 MiB.
	MaxLine int
	// ChunkText makes Event.Text carry each chunk's own text.
	ChunkText bool
	// Redact, if set, is applied to text of the runtime that enters an error or
	// the transcript. It is called from the session's goroutines: it must not
	// block and must not call the session.
	Redact func(string) string
	// Record, if set, receives a transcript of the wire, one JSON object a
	// line. A writer that blocks for more than 1 s in all is given up.
	Record io.Writer
	// Logger receives the log; nil: none. It must not block.
	Logger *slog.Logger
}

// SSH says where and how a remote runtime is launched.
type SSH struct {
	Host string // as ssh takes it: an alias, host or user@host
	// StrictHostKeyChecking is accept-new (also if empty), yes or no.
	StrictHostKeyChecking string
	// PassEnv names variables whose values travel to the remote runtime, over
	// the ssh session's standard input. One that is not set, or blank, does not.
	PassEnv []string
}

// EventType says what an [Event] is.
type EventType string

// The event types. The last four end a turn and are a [Result]'s ExitReason.
const (
	SessionStarted    EventType = "session_started"
	Notification      EventType = "notification"
	OtherMessage      EventType = "other_message"
	Malformed         EventType = "malformed"
	ToolResult        EventType = "tool_result"
	TokenUsage        EventType = "token_usage"
	TurnCompleted     EventType = "turn_completed"
	TurnFailed        EventType = "turn_failed"
	TurnCancelled     EventType = "turn_cancelled"
	TurnInputRequired EventType = "turn_input_required"
)

// An Event is one thing that happened in a session. All its text is clean of
// control characters and bounded.
type Event struct {
	Type      EventType
	Time      time.Time // when its line was read; lines of one read share it
	SessionID string
	PID       int
	Message   string // bounded; a reply is cut to 500 runes; empty for a mere sign of life
	Text      string // a text chunk's own text, with Config.ChunkText

	ToolName     string // ToolResult: one of the ten tool kinds
	ToolDuration time.Duration
	ToolError    bool

	Usage Usage  // TokenUsage: the run's total so far
	Model string // TokenUsage
}

// Usage counts tokens, cumulative over the run. Total is Input + Output;
// CacheRead is a part of Input.
type Usage struct{ Input, Output, Total, CacheRead int64 }

// Result is how a turn ended.
type Result struct {
	SessionID   string
	ExitReason  EventType // the terminal event's type
	StopReason  string    // as the runtime sent it; empty if it sent none
	Usage       Usage     // the run's total so far
	Measured    bool      // a usage figure has arrived in this run
	Unaccounted bool      // this turn showed the model, and no figure covers it
	Refused     int       // permission requests answered by a refusing option
}

// Info is what is known of a session at one moment.
type Info struct {
	AgentName, AgentVersion string // empty when unknown
	Resumed                 bool
	Continuation            string // why resumed or not, in words

	// The four capabilities; false is a gap.
	ToolServers, TokenCounts, SessionContinuation, VersionKnown bool

	Source string // the measurement source in use; empty: none
}

// ErrorKind classifies an [Error].
type ErrorKind string

// The error kinds.
const (
	ErrAgentNotFound        ErrorKind = "agent_not_found"
	ErrInvalidWorkspaceCWD  ErrorKind = "invalid_workspace_cwd"
	ErrResponseTimeout      ErrorKind = "response_timeout"
	ErrPortExit             ErrorKind = "port_exit"
	ErrResponseError        ErrorKind = "response_error"
	ErrTurnFailed           ErrorKind = "turn_failed"
	ErrTurnCancelled        ErrorKind = "turn_cancelled"
	ErrTurnRefused          ErrorKind = "turn_refused"
	ErrTurnTokenLimit       ErrorKind = "turn_token_limit"
	ErrTurnRequestLimit     ErrorKind = "turn_request_limit"
	ErrTurnOutcomeUnknown   ErrorKind = "turn_outcome_unknown"
	ErrTurnInputRequired    ErrorKind = "turn_input_required"
	ErrCredentialUnverified ErrorKind = "credential_unverified" // #nosec G101 -- a name
)

// Retryable reports whether trying again, with exponential backoff, can help.
// A turn_cancelled error unwraps to the cause of its context, by which a caller
// tells its own timeout from a stop.
func (k ErrorKind) Retryable() bool {
	switch k {
	case ErrResponseTimeout, ErrPortExit, ErrResponseError, ErrTurnFailed,
		ErrTurnRequestLimit, ErrCredentialUnverified:
		return true
	}
	return false
}

// Error is the type of every error of Start, RunTurn and Stop.
type Error struct {
	Kind    ErrorKind
	Message string
	Err     error // the cause; may be nil
}

// Error returns "agent: <kind>: <message>: <cause>", without a cause that the
// message already holds.
func (e *Error) Error() string {
	s := "agent: " + string(e.Kind)
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Err != nil {
		if c := e.Err.Error(); c != "" && !strings.Contains(e.Message, c) {
			s += ": " + c
		}
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func fail(kind ErrorKind, message string, cause error) *Error {
	return &Error{Kind: kind, Message: message, Err: cause}
}
