package acp

import (
	"bytes"
	"time"
)

// The texts that SPEC 4 fixes.
const (
	msgNotRPC        = "received a line that could not be parsed as JSON-RPC"
	msgUnknownUpdate = "agent sent a session update this client does not know"
	msgNotText       = "agent sent a message chunk this client does not render"
)

const (
	maxMessage = 500  // runes of a message (SPEC 4)
	maxID      = 1024 // bytes of a request id, toolCallId or messageId (SPEC 12)
)

// line handles one line of the runtime.
func (l *loop) line(line []byte) {
	if text, ok := l.shape.match(line); ok {
		l.textChunk(text)
		return
	}
	if blank(line) {
		return
	}
	m, ok := l.scanner.scan(line)
	switch {
	case !ok:
		l.malformedLine()
	case !m.method.has():
		if m.id.kind() == 0 && m.result.kind() == 0 && m.err.kind() == 0 || !soundID(m.id) {
			l.malformedLine()
			return
		}
		l.response(m)
	case m.method.kind() != '"' || !soundID(m.id):
		l.malformedLine()
	case m.method.is("session/update"):
		l.update(line, m)
	case m.id.kind() == 0 || m.id.kind() == 'n':
		l.logUnknown("agent sent a notification", "method", m.method)
	default:
		l.serve(m)
	}
}

// soundID reports that an id is absent, null, a string or a number, and short.
func soundID(id value) bool {
	switch id.kind() {
	case 0, 'n', '0':
		return len(id) <= maxID
	}
	return id.kind() == '"' && !tooLong(id)
}

func blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}

// malformedLine reports a line that is no JSON-RPC message. It is no update, so
// it does not end the open message.
func (l *loop) malformedLine() {
	l.log.Debug("agent wrote a line that is no message")
	l.emit(Event{Type: Malformed, Time: l.now, Message: msgNotRPC})
}

// overlong obeys SPEC 3's row about a line over the bound.
func (l *loop) overlong() {
	l.log.Warn("agent wrote a line over the bound", "max_line", l.cfg.maxLine)
	l.overBound = true
	const msg = "the agent sent a line over the bound"
	switch {
	case l.inTurn():
		l.endTurn(fail(ErrTurnOutcomeUnknown, msg, nil))
	case len(l.pending) > 0:
		for _, p := range l.pending {
			p.reply <- answer{err: fail(ErrResponseError, msg, nil)}
		}
		l.pending = nil
	default:
		l.emit(Event{Type: Malformed, Time: l.now, Message: msgNotRPC})
	}
}

// update maps one session/update to events (SPEC 4).
func (l *loop) update(line []byte, m *message) {
	if m.params.kind() != '{' {
		l.malformedLine()
		return
	}
	if m.session.kind() == '"' && !l.ours(m.session) {
		l.log.Debug("agent sent an update of another session")
		return
	}
	if m.session.kind() != '"' || tooLong(m.messageID) || tooLong(m.toolCallID) {
		l.unknownUpdate(m)
		return
	}
	if l.replay != nil {
		l.replay.saw(m)
	}
	l.scratch = l.scratch[:0]
	if m.kind.kind() == '"' && len(m.kind) <= 256 {
		l.scratch = appendUnquoted(l.scratch, m.kind)
	}
	if !l.mapUpdate(string(l.scratch), line, m) {
		l.unknownUpdate(m)
	}
}

// ours reports whether an update's session is this one. Until our own id is
// known any may be, but for one whose load was not confirmed.
func (l *loop) ours(id value) bool {
	if l.id != "" {
		return id.is(l.id)
	}
	return l.deadID == "" || !id.is(l.deadID)
}

func tooLong(id value) bool {
	return id.kind() == '"' && len(id) > maxID+2 && (len(id) > 6*maxID+2 || len(appendUnquoted(nil, id)) > maxID)
}

// mapUpdate obeys the table of SPEC 4. It reports false for an unknown kind and
// for a known one whose required fields do not decode.
func (l *loop) mapUpdate(kind string, line []byte, m *message) bool {
	switch kind {
	case "agent_message_chunk":
		return l.messageChunk(line, m)
	case "user_message_chunk":
		l.flushMessage()
		return m.content.kind() == '{'
	case "agent_thought_chunk":
		return m.content.kind() == '{' && l.otherMessage("reasoning block")
	case "plan":
		return m.entries.kind() == '[' && l.otherMessage("plan update")
	case "tool_call", "tool_call_update":
		isCall := kind == "tool_call"
		if m.toolCallID.kind() != '"' || isCall && m.title.kind() != '"' {
			return false
		}
		l.toolUpdate(m, isCall)
		return true
	case "available_commands_update":
		return m.commands.kind() == '[' && l.silent(kind)
	case "current_mode_update":
		return m.modeID.kind() == '"' && l.silent(kind)
	case "config_option_update":
		return m.options.kind() == '[' && l.silent(kind)
	case "session_info_update":
		return l.silent(kind)
	case "usage_update":
		return m.used.kind() == '0' && m.size.kind() == '0' && l.silent(kind)
	}
	return false
}

func (l *loop) silent(kind string) bool {
	l.logUnknown("agent sent an update without an event", "kind", value(kind))
	return true
}

func (l *loop) unknownUpdate(m *message) {
	l.logUnknown("agent sent an unknown update", "kind", m.kind)
	l.updateEvent(Event{Type: Malformed, Message: msgUnknownUpdate})
}

// updateEvent reports an update that maps to an event: the open message goes
// before it.
func (l *loop) updateEvent(ev Event) {
	if l.replay != nil { // SPEC 8: of a replay only messages are kept
		return
	}
	l.flushMessage()
	ev.Time = l.now
	l.emit(ev)
}

func (l *loop) otherMessage(what string) bool {
	if what == "reasoning block" {
		l.showed()
	}
	l.updateEvent(Event{Type: OtherMessage, Message: what})
	return true
}

// messageChunk handles agent_message_chunk.
func (l *loop) messageChunk(line []byte, m *message) bool {
	switch {
	case m.content.kind() != '{' || m.contentType.kind() != '"':
		return false
	case !m.contentType.is("text"):
		l.showed()
		l.updateEvent(Event{Type: Malformed, Message: msgNotText})
		return true
	case m.text.kind() != '"':
		return false
	}
	hasID := m.messageID.kind() == '"'
	l.scratch = l.scratch[:0]
	if hasID {
		l.scratch = appendUnquoted(l.scratch, m.messageID)
	}
	if hasID != l.msg.hasID || string(l.scratch) != l.msg.id {
		l.flushMessage()
		l.msg.hasID, l.msg.id = hasID, string(l.scratch)
	}
	if l.replay == nil && l.id != "" {
		l.shape.learn(line, m.text)
	}
	l.textChunk(m.text)
	return true
}

// textChunk takes a text chunk of the message that l.msg names.
func (l *loop) textChunk(text value) {
	l.msg.add(text, l.now)
	if !l.inTurn() {
		return // SPEC 4: between turns it only adds to its message
	}
	l.turn.showed = true
	ev := Event{Type: Notification, Time: l.now}
	if l.cfg.chunkText {
		ev.Text = cleanText(text)
	}
	l.emit(ev)
}

// flushMessage reports the accumulated message, if there is one.
func (l *loop) flushMessage() {
	if text := l.msg.take(); text != "" {
		l.emit(Event{Type: Notification, Time: l.msg.at, Message: text})
	}
}

// accumulated is the reply that is being streamed: its first runes.
type accumulated struct {
	hasID bool
	id    string
	text  []byte // cleaned
	runes int
	cut   bool
	at    time.Time // of the last text chunk
}

func (a *accumulated) add(text value, at time.Time) {
	a.at = at
	if a.cut {
		return
	}
	var more int
	a.text, more, a.cut = appendClean(a.text, text, maxMessage-a.runes)
	a.runes += more
	if cap(a.text) > 4*maxMessage { // it had to hold a long chunk
		a.text = bytes.Clone(a.text)
	}
}

// take empties the message and returns what it shows.
func (a *accumulated) take() string {
	if a.cut {
		a.text = append(a.text, "…"...)
	}
	text := string(a.text)
	a.text, a.runes, a.cut = a.text[:0], 0, false
	return text
}

// logUnknown logs the first of each unknown kind or method, 64 of them at most.
func (l *loop) logUnknown(msg, key string, name value) {
	const most = 64
	if _, seen := l.seenNames[string(name)]; seen || len(l.seenNames) >= most || len(name) > maxID {
		return
	}
	if l.seenNames == nil {
		l.seenNames = make(map[string]struct{})
	}
	l.seenNames[string(name)] = struct{}{}
	l.log.Debug(msg, key, shown(string(name), labelText, l.cfg.redact))
}
