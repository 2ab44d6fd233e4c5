package acp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// A turn is one session/prompt and everything until its answer. Below done the
// loop writes and RunTurn reads once done is closed; the rest is the loop's.
type turn struct {
	ctx    context.Context
	id     int64         // of the prompt
	line   []byte        // the prompt as it goes out
	events chan *[]Event // loop to RunTurn, unbuffered, never closed
	done   chan struct{} // closed by the loop when the outcome is known

	refusal    *Error   // the turn was not taken
	rest, late *[]Event // undelivered: of the turn, and what overflowed behind it
	dropped    int      // events lost between the two
	answer     answer   // to the prompt, or errLost's *Error
	cause      *Error   // why we ended it; nil: the runtime did
	causeAt    time.Time
	answered   bool // the prompt was
	showed     bool // the model was seen (SPEC 9)
	refused    int

	state turnState
	sent  bool      // the writer took the prompt
	by    time.Time // zero: none
}

type turnState int

const (
	turnWaiting turnState = iota // for the answer to an earlier prompt
	turnOpen                     // the prompt is out, events go to RunTurn
	turnEnding                   // we asked for the end and wait for the answer
	turnOver                     // decided; RunTurn delivers the rest
)

// RunTurn sends one prompt and delivers what the runtime says to onEvent, in
// wire order and on the caller's goroutine, until the turn has ended (SPEC 3).
// The error is nil exactly when the turn completed. Once ctx has ended RunTurn
// returns within the read timeout, a blocked onEvent aside. A turn refused
// because another is in flight or the session is over calls onEvent not at all.
func (s *Session) RunTurn(ctx context.Context, prompt string, onEvent func(Event)) (Result, error) {
	t := &turn{ctx: ctx, id: s.nextID.Add(1), events: make(chan *[]Event), done: make(chan struct{})}
	t.line = encodeRequest(t.id, "session/prompt", promptParams{s.id, []textBlock{{"text", prompt}}})
	if !s.do(func(l *loop) { l.begin(t) }) {
		return Result{}, s.end.refusal()
	}
	defer s.do(func(l *loop) { l.leave(t) }) // also behind a panic of onEvent
	deliver := func(batch *[]Event) {
		if batch == nil {
			return
		}
		if onEvent != nil {
			for i := range *batch {
				onEvent((*batch)[i])
			}
		}
		s.adapter.putBatch(batch)
	}
	for running := true; running; {
		select {
		case b := <-t.events:
			deliver(b)
		case <-t.done:
			running = false
		}
	}
	if t.refusal != nil {
		return Result{}, t.refusal
	}
	deliver(t.rest)
	ev := Event{SessionID: s.id, PID: s.pid}
	send := func(typ EventType, msg string) {
		if onEvent != nil {
			ev.Type, ev.Time, ev.Message = typ, s.now(), msg
			onEvent(ev)
		}
	}
	if t.dropped > 0 {
		send(Notification, droppedNotice(t.dropped))
	}
	deliver(t.late)
	return s.conclude(t, &ev, send)
}

type promptParams struct {
	SessionID string      `json:"sessionId"`
	Prompt    []textBlock `json:"prompt"`
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// conclude reads the outcome, waits for the turn's usage figure and ends the
// turn's events.
func (s *Session) conclude(t *turn, ev *Event, send func(EventType, string)) (Result, error) {
	stop, quota, err := t.outcome(s.launch.redact)
	res := Result{SessionID: ev.SessionID, ExitReason: exitReason(err), StopReason: stop, Refused: t.refused}
	s.measure(t, quota, &res, func(u Usage, model string) {
		ev.Usage, ev.Model = u, model
		send(TokenUsage, "")
		ev.Usage, ev.Model = Usage{}, ""
	})
	if err == nil {
		send(TurnCompleted, "")
		return res, nil
	}
	send(res.ExitReason, err.Message)
	return res, err
}

// measure waits for the turn's usage figure (SPEC 9). A turn that we ended has
// what is left of its read timeout; in another, its context ends the wait.
func (s *Session) measure(t *turn, quota int64, res *Result, report func(Usage, string)) {
	ctx, limit := s.asked, s.launch.readTimeout
	if s.meter.gauge != nil {
		var cancel context.CancelFunc
		if t.cause != nil {
			ctx, cancel = context.WithDeadline(s.asked, t.causeAt.Add(limit))
		} else {
			ctx, cancel = context.WithCancel(s.asked)
			defer context.AfterFunc(t.ctx, cancel)()
		}
		defer cancel()
	}
	r := s.meter.turn(ctx, spent{showed: t.showed, answered: t.answered, bound: quota}, limit)
	res.Usage, res.Measured, res.Unaccounted = r.usage, r.measured, r.unaccounted
	if r.unaccounted && s.meter.gauge != nil {
		s.log.Debug("agent turn is not fully measured")
	}
	if r.dropped {
		s.dropSource()
	}
	if r.report {
		report(r.usage, cleanLabel(r.model))
	}
}

func exitReason(err *Error) EventType {
	switch {
	case err == nil:
		return TurnCompleted
	case err.Kind == ErrTurnCancelled:
		return TurnCancelled
	case err.Kind == ErrTurnInputRequired:
		return TurnInputRequired
	}
	return TurnFailed
}

// outcome obeys SPEC 3's table. The first cause decides, whatever the answer.
func (t *turn) outcome(redact func(string) string) (stop string, quota int64, err *Error) {
	if t.answer.err == nil {
		reason := t.answer.result.get("stopReason")
		if stop = reason.str(); reason.has() && reason.kind() != '"' {
			stop = reason.compact()
		}
		quota = quotaBound(t.answer.result)
		shown := shown(stop, labelText, redact)
		err = stopError(stop, shown)
		stop = shown
	} else {
		err = promptError(t.answer.err)
	}
	if t.cause != nil {
		err = t.cause
	}
	return stop, quota, err
}

func promptError(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return fail(ErrResponseError, "session/prompt: "+err.Error(), nil)
}

func stopError(stop, shown string) *Error {
	switch stop {
	case "end_turn":
		return nil
	case "refusal":
		return fail(ErrTurnRefused, "the agent refused to go on", nil)
	case "max_tokens":
		return fail(ErrTurnTokenLimit, "the agent reached its token limit", nil)
	case "max_turn_requests":
		return fail(ErrTurnRequestLimit, "the agent reached its limit of requests in a turn", nil)
	case "cancelled":
		return fail(ErrTurnFailed, "agent reported a cancelled stop reason without a cancellation on either side", nil)
	case "":
		return fail(ErrTurnOutcomeUnknown, "the answer to the prompt has no stop reason", nil)
	}
	return fail(ErrTurnOutcomeUnknown, "unknown stop reason: "+shown, nil)
}

// refusal is the error of a turn on a session that is over.
func (e *epilogue) refusal() *Error {
	if e.lost != nil {
		return e.lost
	}
	return fail(ErrPortExit, "the session is stopped", nil)
}

func droppedNotice(n int) string { return fmt.Sprintf("%d events were dropped between turns", n) }

func (l *loop) takeDropped() (n int) {
	if n, l.queue.dropped = l.queue.dropped, 0; n > 0 {
		l.log.Debug("events were dropped", "count", n)
	}
	return n
}

// begin takes a turn into the session, or refuses it.
func (l *loop) begin(t *turn) {
	if t.refusal = l.refusal(); t.refusal != nil {
		close(t.done)
		return
	}
	l.turn = t
	l.deliver(Event{Type: SessionStarted, Time: l.s.now()})
	switch {
	case t.ctx.Err() != nil:
		l.endTurn(fail(ErrTurnCancelled, "the turn was cancelled", context.Cause(t.ctx)))
	case l.openPrompt != 0:
		t.by = time.Now().Add(l.cfg.readTimeout)
	default:
		l.openTurn()
	}
}

func (l *loop) refusal() *Error {
	switch {
	case l.turn != nil:
		return fail(ErrResponseError, "a turn is already in flight in this session", nil)
	case l.lost != nil:
		return l.lost
	case l.stopping:
		return fail(ErrPortExit, "the session is stopped", nil)
	case l.eof:
		return l.lossError()
	case l.broken:
		return fail(ErrPortExit, "writing to the agent failed", nil)
	}
	return nil
}

// openTurn delivers what a turn starts with and sends the prompt.
func (l *loop) openTurn() {
	t := l.turn
	t.by, l.openPrompt, l.overBound = time.Time{}, 0, false
	l.flushMessage()
	if !l.noticed {
		l.noticed = true
		if gaps := l.info.gaps(); gaps != "" {
			l.deliver(Event{Type: Notification, Time: l.s.now(),
				Message: "this session started with a declared capability gap in: " + gaps})
		}
	}
	if n := l.takeDropped(); n > 0 {
		l.deliver(Event{Type: Notification, Time: l.s.now(), Message: droppedNotice(n)})
	}
	if queued := l.queue.take(); queued != nil {
		for _, ev := range *queued {
			l.deliver(ev) // now with the session's id: some came before it was known
		}
	}
	t.state = turnOpen
	if l.heldInput != "" { // SPEC 5: it ends without a prompt
		t.cause = fail(ErrTurnInputRequired, l.heldInput, nil)
		l.heldInput = ""
		l.finish(answer{})
		return
	}
	l.enqueue(outgo{line: t.line, prompt: true})
	t.line = nil
}

// endTurn ends the turn for a cause of our own. The first cause decides.
func (l *loop) endTurn(cause *Error) {
	t := l.turn
	if t == nil || t.state == turnOver || t.cause != nil {
		return
	}
	t.cause, t.causeAt = cause, time.Now()
	if t.state == turnWaiting || l.withdraw() {
		l.finish(answer{})
		return
	}
	t.state = turnEnding
	t.by = time.Now().Add(l.cfg.readTimeout)
	l.cancelPrompt()
}

func (l *loop) cancelPrompt() {
	l.enqueue(outgo{ours: true, line: encodeNotification("session/cancel", struct {
		SessionID string `json:"sessionId"`
	}{l.id})})
}

// withdraw takes back a prompt of which nothing has been written.
func (l *loop) withdraw() bool {
	if l.turn.sent {
		return false
	}
	l.outq = slices.DeleteFunc(l.outq, func(o outgo) bool { return o.prompt })
	return true
}

// turnDue ends a wait of the turn that has taken the read timeout.
func (l *loop) turnDue(t *turn) {
	if t.state == turnWaiting && l.overBound {
		l.openTurn() // SPEC 3: the next turn works
		return
	}
	if t.state == turnWaiting {
		l.log.Warn("agent prompt timed out", "phase", "earlier prompt")
		l.finish(answer{err: fail(ErrResponseTimeout, "an earlier prompt is still unanswered", nil)})
		return
	}
	l.log.Warn("agent prompt timed out", "phase", "cancel")
	l.finish(answer{})
}

// finish decides the turn and leaves the rest to RunTurn, for whom the loop
// never waits.
func (l *loop) finish(a answer) {
	t := l.turn
	t.answer = a
	l.withdraw() // or it would run behind the caller's retry
	if t.state != turnWaiting {
		l.flushMessage()
		t.late, t.dropped = l.queue.take(), l.takeDropped()
	}
	if t.sent && !t.answered {
		l.openPrompt = t.id
	}
	t.rest, l.pend = l.pend, nil
	t.state, t.by, t.line = turnOver, time.Time{}, nil
	close(t.done)
}

// leave lets the turn go when RunTurn returns or unwinds. An undecided one,
// behind a panic, is cancelled and left unanswered.
func (l *loop) leave(t *turn) {
	if l.turn != t {
		return
	}
	if t.state != turnOver {
		l.endTurn(fail(ErrTurnCancelled, "the event callback did not return", nil))
		if t.state != turnOver {
			l.finish(answer{})
		}
	}
	l.turn = nil
}

// emit hands an event to the turn in flight, or queues it for the next.
func (l *loop) emit(ev Event) {
	if l.inTurn() && len(l.queue.events) == 0 && (l.pend == nil || len(*l.pend) < eventBatch && len(ev.Text) <= largeBuf) {
		l.deliver(ev)
		return
	}
	ev.SessionID, ev.PID = l.id, l.s.pid
	l.queue.push(ev, l.cfg.maxLine)
}

// inTurn reports that what the runtime says belongs to the turn in flight.
func (l *loop) inTurn() bool {
	return l.turn != nil && (l.turn.state == turnOpen || l.turn.state == turnEnding)
}

// showed notes that the turn in flight, if any, brought something of the model.
func (l *loop) showed() {
	if l.inTurn() {
		l.turn.showed = true
	}
}

// deliver adds an event to the batch for RunTurn.
func (l *loop) deliver(ev Event) {
	ev.SessionID, ev.PID = l.id, l.s.pid
	if l.pend == nil {
		l.pend = l.s.adapter.getBatch()
	}
	*l.pend = append(*l.pend, ev)
}

// eventBatch is how many events go to RunTurn at once.
const eventBatch = 256

// full reports that the turn's events have no room for what one more line can
// bring. A turn that is being ended takes everything.
func (l *loop) full() bool {
	return l.held() && (len(l.queue.events) > 0 || len(*l.pend) >= eventBatch-8)
}

// held reports that nothing more may be taken from the reader until the
// consumer has had what there is.
func (l *loop) held() bool {
	return l.turn != nil && l.turn.state == turnOpen && l.pend != nil
}

func (a *Adapter) getBatch() *[]Event {
	if b, ok := a.batches.Get().(*[]Event); ok {
		return b
	}
	b := make([]Event, 0, eventBatch)
	return &b
}

func (a *Adapter) putBatch(b *[]Event) {
	if cap(*b) != eventBatch {
		return
	}
	clear(*b)
	*b = (*b)[:0]
	a.batches.Put(b)
}

// eventQueue keeps the newest 1,024 events (SPEC 4), oldest first.
type eventQueue struct {
	events  []Event
	text    int // bytes of their Text
	dropped int
}

const queueBound = 1024

// push adds an event. What the events carry of a reply is bounded too, by four
// lines at their bound.
func (q *eventQueue) push(ev Event, maxLine int) {
	q.events = append(q.events, ev)
	q.text += len(ev.Text)
	for len(q.events) > queueBound || len(q.events) > 1 && q.text/4 > maxLine {
		q.text -= len(q.events[0].Text)
		q.events[0] = Event{}
		q.events = q.events[1:]
		q.dropped++
	}
}

// take empties the queue; nil when there is nothing.
func (q *eventQueue) take() *[]Event {
	if len(q.events) == 0 {
		return nil
	}
	all := q.events
	q.events, q.text = nil, 0
	return &all
}

// response handles a message without a method (SPEC 12).
func (l *loop) response(m *message) {
	a, sound := parseAnswer(m, l.cfg.redact)
	if !sound {
		l.emit(Event{Type: Malformed, Time: l.now, Message: msgNotRPC})
	}
	id, quoted, ok := ownID(m.id)
	if ok && quoted {
		l.log.Debug("agent returned a request id as a string", "id", id)
	}
	t := l.turn
	switch {
	case ok && l.inTurn() && id == t.id && t.sent:
		t.answered = true
		l.finish(a)
		return
	case ok && id == l.openPrompt && id != 0:
		l.openPrompt = 0
		if t != nil && t.state == turnWaiting {
			l.openTurn()
		}
		return
	case ok:
		for _, p := range l.pending {
			if p.id == id {
				p.reply <- a
				l.forget(id)
				return
			}
		}
	}
	l.log.Debug("agent sent an unmatched response")
}

// parseAnswer copies an answer out of the read buffer. It is not sound when it
// has both a result and an error, or neither, or an error that is no object.
func parseAnswer(m *message, redact func(string) string) (a answer, sound bool) {
	hasErr := m.err.kind() != 0 && m.err.kind() != 'n'
	switch {
	case hasErr && m.err.kind() == '{' && (m.result.kind() == 0 || m.result.kind() == 'n'):
		return answer{err: parseRPCError(m.err, redact)}, true
	case !hasErr && m.result.kind() != 0:
		return answer{result: bytes.Clone(m.result)}, true
	}
	return answer{err: fail(ErrResponseError, "the agent sent an answer that is neither a result nor an error", nil)}, false
}

// rpcError is an error answer, cleaned and cut.
type rpcError struct {
	code    int64
	message string
	data    string
}

const authRequired = -32000

func (e *rpcError) Error() string {
	s := fmt.Sprintf("error %d: %s", e.code, e.message)
	if e.data != "" {
		s += ": " + e.data
	}
	return s
}

// parseRPCError shows data bare if it is a string, else as compact JSON.
func parseRPCError(v value, redact func(string) string) *rpcError {
	e := &rpcError{message: shown(v.get("message").str(), errorText, redact)}
	if code, err := strconv.ParseFloat(string(v.get("code")), 64); err == nil {
		e.code = int64(code)
	}
	switch data := v.get("data"); {
	case data.kind() == '"':
		e.data = shown(data.str(), errorText, redact)
	case data.has():
		e.data = shown(data.compact(), errorText, redact)
	}
	return e
}
