package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// wire reads a session's transcript for what the package's API leaves out. Only
// the recorder writes to it, and it is read when the session is over.
type wire struct {
	line []byte
	skip bool

	initID      string
	answered    bool
	handshakeMS int64 // of the first start, if there were several
	answer      json.RawMessage
	noise       int
	firstNoise  string
	permissions int
}

const (
	wireLine    = 32 << 20 // longest transcript line looked at
	noiseSample = 120
)

func (w *wire) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, whole := bytes.Cut(p, []byte("\n"))
		if w.skip = w.skip || len(w.line)+len(part) > wireLine; !w.skip {
			w.line = append(w.line, part...)
		}
		if whole {
			if !w.skip {
				w.take(w.line)
			}
			w.line, w.skip = w.line[:0], false
		}
		p = rest
	}
	return n, nil
}

func (w *wire) take(entry []byte) {
	var e struct {
		T              float64
		Dir, Line, B64 string
	}
	if json.Unmarshal(entry, &e) != nil {
		return
	}
	line := []byte(e.Line)
	if e.B64 != "" {
		line, _ = base64.StdEncoding.DecodeString(e.B64)
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Result json.RawMessage
		Error  json.RawMessage
	}
	bad := json.Unmarshal(line, &m) != nil || m.ID == nil && m.Method == "" && m.Error == nil
	switch {
	case e.Dir == "send" && m.Method == "initialize":
		w.initID = string(m.ID)
	case e.Dir != "recv" || len(bytes.TrimSpace(line)) == 0:
	case bad:
		if w.noise++; w.noise == 1 {
			w.firstNoise = cut(oneLine(string(line)), noiseSample)
		}
	case m.Method == "session/request_permission":
		w.permissions++
	case m.Method == "" && w.initID != "" && strings.Trim(string(m.ID), `"`) == w.initID:
		w.initID = ""
		if m.Result != nil && !w.answered {
			w.answered, w.handshakeMS = true, int64(e.T)
		}
		w.answer = bytes.Clone(m.Result)
	}
}

// advertised is what the answer to initialize says.
type advertised struct {
	agent         agentLine
	protocol      json.RawMessage
	load, resume  bool
	close, remove bool
	http, sse     bool
}

func (w *wire) capabilities() advertised {
	var a struct {
		ProtocolVersion json.RawMessage `json:"protocolVersion"`
		AgentInfo       struct {
			Name    any `json:"name"`
			Version any `json:"version"`
		} `json:"agentInfo"`
		AgentCapabilities struct {
			LoadSession         any            `json:"loadSession"`
			SessionCapabilities map[string]any `json:"sessionCapabilities"`
			MCPCapabilities     map[string]any `json:"mcpCapabilities"`
		} `json:"agentCapabilities"`
	}
	_ = json.Unmarshal(w.answer, &a) // fields of a wrong type take their default
	c := a.AgentCapabilities
	text := func(v any) string {
		s, _ := v.(string)
		return cut(oneLine(s), 200)
	}
	return advertised{
		agent:    agentLine{text(a.AgentInfo.Name), text(a.AgentInfo.Version)},
		protocol: bounded(a.ProtocolVersion),
		load:     c.LoadSession == true,
		resume:   c.SessionCapabilities["resume"] != nil,
		close:    c.SessionCapabilities["close"] != nil,
		remove:   c.SessionCapabilities["delete"] != nil,
		http:     c.MCPCapabilities["http"] == true,
		sse:      c.MCPCapabilities["sse"] == true,
	}
}

// bounded is a value as it was answered, or the beginning of a long one in a string.
func bounded(v json.RawMessage) json.RawMessage {
	if len(v) > 200 {
		v, _ = json.Marshal(cut(oneLine(string(v)), 200)) // a string always can
	}
	return v
}

func (a advertised) resumeRoute() string {
	switch {
	case a.load:
		return "session/load"
	case a.resume:
		return "session/resume"
	}
	return ""
}

func (w *wire) authMethods() []authMethod {
	var a struct {
		AuthMethods []authMethod `json:"authMethods"`
	}
	_ = json.Unmarshal(w.answer, &a)
	methods := []authMethod{}
	for _, m := range a.AuthMethods[:min(16, len(a.AuthMethods))] {
		methods = append(methods, authMethod{cut(oneLine(m.ID), 200), cut(oneLine(m.Name), 200)})
	}
	return methods
}
