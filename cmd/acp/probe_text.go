package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// show prints the report for people or for machines.
func (r *report) show(to io.Writer, asJSON bool) {
	if asJSON {
		enc := json.NewEncoder(to)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(r)
		return
	}
	var b strings.Builder
	row := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-28s%s\n", label, fmt.Sprintf(format, args...))
	}
	row("command", "%s", oneLine(strings.Join(r.Command, " ")))
	if r.Starts {
		row("starts", "yes, handshake after %s", seconds(r.HandshakeMS))
		row("name, version", "%s", r.agentText())
		row("protocol version", "%s", oneLine(string(r.Protocol)))
	} else {
		row("starts", "no")
	}
	for _, c := range []struct {
		label string
		capability
	}{
		{"tool servers", r.Capabilities.ToolServers},
		{"token counts", r.Capabilities.TokenCounts},
		{"session continuation", r.Capabilities.SessionContinuation},
		{"agent version", r.Capabilities.AgentVersion},
	} {
		row(c.label, "%s", joined(": ", c.State, c.Reason))
	}
	if r.Starts {
		r.offers(row)
	}
	row("stdout noise", "%s", r.noiseText())
	r.turnRows(row)
	for _, e := range r.Endings {
		row("after "+e.How, "%s", e.text())
	}
	if r.Fit {
		row("verdict", "fit")
	} else {
		row("verdict", "not fit: %s", r.Reason)
	}
	_, _ = io.WriteString(to, b.String())
}

func (r *report) agentText() string {
	if r.Agent == (agentLine{}) {
		return "unknown"
	}
	return joined(" ", r.Agent.Name, r.Agent.Version)
}

// offers prints what the answer to initialize advertises.
func (r *report) offers(row func(string, string, ...any)) {
	or := func(yes bool, s string) string {
		if yes {
			return s
		}
		return "none"
	}
	row("routes", "resume: %s, close: %s, delete: %s", or(r.Routes.Resume != "", r.Routes.Resume),
		or(r.Routes.Close, "session/close"), or(r.Routes.Delete, "session/delete"))
	transports := "stdio"
	if r.MCP.HTTP {
		transports += ", http"
	}
	if r.MCP.SSE {
		transports += ", sse"
	}
	row("MCP transports", "%s", transports)
	names := []string{}
	for _, m := range r.Auth.Methods {
		names = append(names, m.ID)
	}
	methods := "no methods offered"
	if len(names) > 0 {
		methods = "methods offered: " + strings.Join(names, ", ")
	}
	switch r.Auth.Needed {
	case "yes":
		row("authentication", "needed: error -32000 asks for a login. Log in with the runtime's own tool, as the user who will run it; %s", methods)
	case "no":
		when := "not needed to open a session (a prompt may still need it)"
		if r.Turn != nil {
			when = "not needed"
		}
		row("authentication", "%s; %s", when, methods)
	default:
		row("authentication", "unknown; %s", methods)
	}
}

func (r *report) noiseText() string {
	if r.Noise.Lines == 0 {
		return "none"
	}
	if r.Noise.Lines == 1 {
		return "1 line that is no protocol: " + r.Noise.First
	}
	return fmt.Sprintf("%d lines that are no protocol, first: %s", r.Noise.Lines, r.Noise.First)
}

// turnRows prints what only a turn can show.
func (r *report) turnRows(row func(string, string, ...any)) {
	if r.Turn == nil {
		if r.Permissions.Asked > 0 {
			row("permissions", "%d asked outside of any turn, refused", r.Permissions.Asked)
		} else {
			row("permissions", "unknown: no turn was run (-prompt TEXT runs one)")
		}
	} else {
		row("turn", "%s", joined(", ", string(r.Turn.ExitReason), r.Turn.StopReason))
		row("permissions", "%d asked, %d refused by an option, %d cancelled for want of one", r.Permissions.Asked,
			r.Permissions.Refused, max(0, r.Permissions.Asked-r.Permissions.Refused))
	}
	switch {
	case !r.Tokens.Measurable:
		row("tokens", "cannot be measured")
	case r.Tokens.Measured == nil:
		row("tokens", "can be measured (%s); no turn was run", r.Tokens.Source)
	case *r.Tokens.Measured:
		row("tokens", "measured (%s)", r.Tokens.Source)
	default:
		row("tokens", "could be measured (%s), but the turn brought no figure", r.Tokens.Source)
	}
}

func (e ending) text() string {
	s := e.Exit
	if e.AfterMS > 0 {
		s += " after " + seconds(e.AfterMS)
	}
	if e.Exit == "unknown" || strings.HasPrefix(e.Exit, "not tried") {
		return s
	}
	if len(e.Left) == 0 {
		return s + ", nothing left running"
	}
	names := []string{}
	for _, l := range e.Left {
		names = append(names, fmt.Sprintf("%s (%d)", l.Name, l.PID))
	}
	return s + ", left running: " + strings.Join(names, ", ")
}

func seconds(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).String()
}

func joined(sep string, a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + sep + b
}
