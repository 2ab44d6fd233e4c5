package main

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/sortie-ai/acp"
)

// jsonLines shows a run as one JSON object a line.
type jsonLines struct{ enc *json.Encoder }

func newJSONLines(to *outlet) *jsonLines {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return &jsonLines{enc}
}

type eventLine struct {
	Type      acp.EventType `json:"type"`
	Time      string        `json:"time"`
	SessionID string        `json:"session_id"`
	PID       int           `json:"pid"`
	Message   string        `json:"message,omitempty"`
	Text      string        `json:"text,omitempty"`
	ToolName  string        `json:"tool_name,omitempty"`
	// The pointers are there on every tool_result or token_usage, zero or not.
	ToolDurationMS *int64     `json:"tool_duration_ms,omitempty"`
	ToolError      *bool      `json:"tool_error,omitempty"`
	Usage          *usageLine `json:"usage,omitempty"`
	Model          string     `json:"model,omitempty"`
}

type usageLine struct {
	Input     int64 `json:"input_tokens"`
	Output    int64 `json:"output_tokens"`
	Total     int64 `json:"total_tokens"`
	CacheRead int64 `json:"cache_read_tokens"`
}

type errorLine struct {
	Kind      acp.ErrorKind `json:"kind"`
	Message   string        `json:"message"`
	Retryable bool          `json:"retryable"`
}

type turnLine struct {
	Type        string        `json:"type"`
	Turn        int           `json:"turn"`
	SessionID   string        `json:"session_id"`
	ExitReason  acp.EventType `json:"exit_reason"`
	StopReason  string        `json:"stop_reason"`
	Error       *errorLine    `json:"error"`
	Usage       usageLine     `json:"usage"`
	Measured    bool          `json:"measured"`
	Unaccounted bool          `json:"unaccounted"`
	Refused     int           `json:"refused"`
}

type resultLine struct {
	Type         string         `json:"type"`
	SessionID    string         `json:"session_id"`
	Turns        int            `json:"turns"`
	Error        *errorLine     `json:"error"`
	Agent        agentLine      `json:"agent"`
	Resumed      bool           `json:"resumed"`
	Capabilities capabilityLine `json:"capabilities"`
}

type agentLine struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type capabilityLine struct {
	ToolServers         string `json:"tool_servers"`
	TokenCounts         string `json:"token_counts"`
	SessionContinuation string `json:"session_continuation"`
	AgentVersion        string `json:"agent_version"`
}

// timeFormat is RFC 3339 with all nine digits, so that lines sort as text.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// The outlet remembers a failed write and ends the run, so the errors of
// Encode need no look here.

func (j *jsonLines) event(e acp.Event) {
	l := eventLine{
		Type: e.Type, Time: e.Time.UTC().Format(timeFormat), SessionID: e.SessionID, PID: e.PID,
		Message: e.Message, Text: e.Text, ToolName: e.ToolName, Model: e.Model,
	}
	switch e.Type {
	case acp.ToolResult:
		ms := e.ToolDuration.Milliseconds()
		l.ToolDurationMS, l.ToolError = &ms, &e.ToolError
	case acp.TokenUsage:
		u := usageOf(e.Usage)
		l.Usage = &u
	}
	_ = j.enc.Encode(l)
}

func (j *jsonLines) turnStarts(int, int, string) {}

func (j *jsonLines) turnEnds(n int, r acp.Result, err error, _ time.Duration) {
	_ = j.enc.Encode(turnLine{
		Type: "turn_result", Turn: n, SessionID: r.SessionID, ExitReason: r.ExitReason,
		StopReason: r.StopReason, Error: errorOf(err), Usage: usageOf(r.Usage),
		Measured: r.Measured, Unaccounted: r.Unaccounted, Refused: r.Refused,
	})
}

func (j *jsonLines) stopping() {}

func (j *jsonLines) ready(string, int, acp.Info) {}

func (j *jsonLines) over(e end) {
	_ = j.enc.Encode(resultLine{
		Type: "result", SessionID: e.id, Turns: e.turns, Error: errorOf(e.err),
		Agent:   agentLine{e.info.AgentName, e.info.AgentVersion},
		Resumed: e.info.Resumed, Capabilities: capabilitiesOf(e.info),
	})
}

func capabilitiesOf(i acp.Info) capabilityLine {
	word := func(delivered bool) string {
		if delivered {
			return "delivered"
		}
		return "gap"
	}
	return capabilityLine{word(i.ToolServers), word(i.TokenCounts), word(i.SessionContinuation), word(i.VersionKnown)}
}

func usageOf(u acp.Usage) usageLine {
	return usageLine{u.Input, u.Output, u.Total, u.CacheRead}
}

// errorOf renders an error with its cause in the message, as Error.Error does.
func errorOf(err error) *errorLine {
	if err == nil {
		return nil
	}
	var e *acp.Error
	if !errors.As(err, &e) {
		return &errorLine{Message: err.Error()}
	}
	message := strings.TrimPrefix(e.Error(), "agent: "+string(e.Kind)+": ")
	return &errorLine{Kind: e.Kind, Message: message, Retryable: e.Kind.Retryable()}
}
