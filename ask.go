package acp

import "encoding/json"

// The texts that SPEC 5 fixes.
const (
	msgRefused      = "refused a permission request because this run is unattended and no one can approve it"
	msgNeedsGrant   = "the agent needs a permission this unattended run cannot grant"
	msgNeedsAnswer  = "the agent asked for something only a person could give, and this unattended run has no one to give it: an answer to a question"
	msgNoSuchMethod = "the agent called a method this client does not implement"
	msgGatedTools   = "a tool delivered to this session cannot be called if the agent asks for permission before it: the answer is a refusal"
)

const methodNotFound = -32601

// serve answers a request of the runtime (SPEC 5), at once: none stays open.
func (l *loop) serve(m *message) {
	switch {
	case m.method.is("session/request_permission"):
		l.permission(m)
	case m.method.is("elicitation/create"):
		l.enqueue(outgo{ours: true, line: encodeError(m.id, methodNotFound, "method not found")})
		if !l.beingCancelled() {
			l.emit(Event{Type: Notification, Time: l.now, Message: msgNeedsAnswer})
			l.needInput(msgNeedsAnswer)
		}
	default:
		l.enqueue(outgo{ours: true, line: encodeError(m.id, methodNotFound, "method not found")})
		l.logUnknown("agent called an unknown method", "method", m.method)
		l.emit(Event{Type: Malformed, Time: l.now, Message: msgNoSuchMethod})
	}
}

func (l *loop) beingCancelled() bool {
	return l.tearing || l.turn != nil && l.turn.state == turnEnding
}

type permissionOutcome struct {
	Outcome struct {
		Outcome  string          `json:"outcome"`
		OptionID json.RawMessage `json:"optionId,omitempty"`
	} `json:"outcome"`
}

// permission refuses. No option that allows is ever selected.
func (l *loop) permission(m *message) {
	call := m.params.get("toolCall")
	if id := call.get("toolCallId"); id.kind() == '"' && !tooLong(id) && l.replay == nil {
		l.noteTool(id, call.get("kind"), false)
	}
	var out permissionOutcome
	out.Outcome.Outcome = "cancelled"
	option := refusingOption(m.params.get("options"))
	cancelling := l.beingCancelled()
	if option != nil && !cancelling {
		out.Outcome.Outcome, out.Outcome.OptionID = "selected", json.RawMessage(option)
	}
	l.enqueue(outgo{ours: true, line: encodeResult(m.id, out)})
	switch {
	case cancelling:
		return
	case option == nil:
		l.emit(Event{Type: Notification, Time: l.now, Message: msgNeedsGrant})
	default:
		if l.inTurn() {
			l.turn.refused++
		}
		l.emit(Event{Type: Notification, Time: l.now, Message: msgRefused})
	}
	if l.servers && !l.gated {
		l.gated = true
		l.log.Warn("agent gates tools behind permissions that are refused")
		l.emit(Event{Type: Notification, Time: l.now, Message: msgGatedTools})
	}
	if option == nil {
		l.needInput(msgNeedsGrant)
	}
}

// refusingOption returns the id, as received, of the first option that rejects
// once, else of the first that rejects always; nil if there is none.
func refusingOption(options value) (refusing value) {
	for _, o := range options.each {
		id, kind := o.get("optionId"), o.get("kind")
		switch {
		case id.kind() != '"':
		case kind.is("reject_once"):
			return id
		case kind.is("reject_always") && refusing == nil:
			refusing = id
		}
	}
	return refusing
}

// needInput ends the turn because only a person could go on; between turns it
// is the next turn that ends.
func (l *loop) needInput(msg string) {
	if l.inTurn() {
		l.endTurn(fail(ErrTurnInputRequired, msg, nil))
		return
	}
	l.heldInput = msg
}
