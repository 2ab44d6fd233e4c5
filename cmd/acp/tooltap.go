package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync/atomic"
)

// A toolTap reads the session's transcript for the tools that run now: events
// tell only of those that ended.
type toolTap struct {
	line    []byte
	skip    bool // the line is too long to matter
	running []runningTool
	label   atomic.Value // string, for the status line
}

type runningTool struct{ id, kind string }

const (
	tapLine  = 64 << 10 // longest line looked at
	tapTools = 32       // tools remembered
)

// Write takes a piece of the transcript. Only the recorder calls it.
func (t *toolTap) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, whole := bytes.Cut(p, []byte("\n"))
		if t.skip = t.skip || len(t.line)+len(part) > tapLine; !t.skip {
			t.line = append(t.line, part...)
		}
		if whole {
			if !t.skip {
				t.take(t.line)
			}
			t.line, t.skip = t.line[:0], false
		}
		p = rest
	}
	return n, nil
}

func (t *toolTap) take(line []byte) {
	if !bytes.Contains(line, []byte("tool_call")) && !bytes.Contains(line, []byte("session/")) {
		return
	}
	var entry struct{ Line string }
	type call struct{ ToolCallID, Kind, Status string }
	var m struct {
		Method string
		Params struct {
			Update   struct{ call }
			ToolCall call
		}
	}
	if json.Unmarshal(line, &entry) != nil || json.Unmarshal([]byte(entry.Line), &m) != nil {
		return
	}
	switch c := m.Params.Update.call; m.Method {
	case "session/prompt":
		t.running = nil
	case "session/request_permission": // it is going to be refused
		t.ended(m.Params.ToolCall.ToolCallID)
	case "session/update":
		if c.Status == "completed" || c.Status == "failed" {
			t.ended(c.ToolCallID)
		} else if c.ToolCallID != "" {
			t.runs(c.ToolCallID, c.Kind)
		}
	}
	label := ""
	if n := len(t.running); n > 0 {
		label = t.running[n-1].kind
	}
	t.label.Store(label)
}

func (t *toolTap) ended(id string) {
	t.running = slices.DeleteFunc(t.running, func(r runningTool) bool { return r.id == id })
}

func (t *toolTap) runs(id, kind string) {
	i := slices.IndexFunc(t.running, func(r runningTool) bool { return r.id == id })
	if i < 0 {
		if len(t.running) == tapTools {
			t.running = t.running[1:]
		}
		t.running = append(t.running, runningTool{id, toolKind(kind)})
	} else if kind != "" {
		t.running[i].kind = toolKind(kind)
	}
}

// current names the kind of the tool that runs, or is empty.
func (t *toolTap) current() string {
	s, _ := t.label.Load().(string)
	return s
}

// toolKind takes only the kinds of the protocol, so that nothing else of the
// runtime's reaches the status line.
func toolKind(kind string) string {
	switch kind {
	case "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode":
		return kind
	}
	return "tool"
}
