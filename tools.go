package acp

import (
	"container/list"
	"time"
)

// toolBound is how many tool calls are remembered, open and ended together.
const toolBound = 1024

// toolCall is one tool call of the runtime. Its place is in open or in ended.
type toolCall struct {
	id    string
	kind  string
	begun time.Time
	ended bool
}

// toolTable remembers the session's tool calls by id. Both lists are oldest
// first. Its zero value is ready.
type toolTable struct {
	byID        map[string]*list.Element
	open, ended list.List
}

// toolKinds is the closed set of SPEC 4.
func toolKind(v value) string {
	for _, k := range [...]string{"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"} {
		if v.is(k) {
			return k
		}
	}
	return "other"
}

// begin returns the call of that id, begun now if it is new or if fresh and it
// had ended. overflow tells that an older one was forgotten for it.
func (t *toolTable) begin(id []byte, at time.Time, fresh bool) (e *list.Element, overflow bool) {
	if e = t.byID[string(id)]; e != nil {
		call := e.Value.(*toolCall)
		if call.ended && fresh {
			t.ended.Remove(e)
			*call = toolCall{id: call.id, kind: "other", begun: at}
			e = t.open.PushBack(call)
			t.byID[call.id] = e
		}
		return e, false
	}
	if overflow = len(t.byID) >= toolBound; overflow {
		oldest, from := t.ended.Front(), &t.ended
		if oldest == nil {
			oldest, from = t.open.Front(), &t.open
		}
		delete(t.byID, from.Remove(oldest).(*toolCall).id)
	}
	if t.byID == nil {
		t.byID = make(map[string]*list.Element)
	}
	call := &toolCall{id: string(id), kind: "other", begun: at}
	e = t.open.PushBack(call)
	t.byID[call.id] = e
	return e, overflow
}

// end marks an open call as ended.
func (t *toolTable) end(e *list.Element) {
	call := t.open.Remove(e).(*toolCall)
	call.ended = true
	t.byID[call.id] = t.ended.PushBack(call)
}

// noteTool begins or updates the call that a message names, and returns it.
func (l *loop) noteTool(id, kind value, fresh bool) *list.Element {
	l.showed()
	l.scratch = appendUnquoted(l.scratch[:0], id)
	e, overflow := l.tools.begin(l.scratch, l.now, fresh)
	if overflow {
		l.log.Debug("agent has more tool calls than are remembered")
	}
	if call := e.Value.(*toolCall); kind.kind() == '"' && !call.ended {
		call.kind = toolKind(kind)
	}
	return e
}

// toolUpdate handles tool_call and tool_call_update.
func (l *loop) toolUpdate(m *message, isCall bool) {
	if l.replay != nil {
		return
	}
	e := l.noteTool(m.toolCallID, m.toolKind, isCall)
	failed := m.status.is("failed")
	call := e.Value.(*toolCall)
	if call.ended || !failed && !m.status.is("completed") {
		return
	}
	ev := Event{Type: ToolResult, ToolName: call.kind, ToolDuration: l.now.Sub(call.begun), ToolError: failed}
	if m.title.kind() == '"' {
		title, _, _ := appendClean(nil, m.title, maxMessage)
		ev.Message = string(title)
	}
	l.tools.end(e)
	l.updateEvent(ev)
}
