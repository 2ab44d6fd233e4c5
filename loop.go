package acp

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// loop owns every fact of the protocol. All its methods run on one goroutine.
type loop struct {
	s   *Session
	cfg *launch
	p   *process
	log *slog.Logger

	inbox     <-chan batch // from the reader, capacity 1; nil after the stream's end
	out       chan<- outgo // to the writer, unbuffered; nil when closed or failed
	wfailed   <-chan error // from the writer, capacity 1: its last act after a failure
	exited    <-chan struct{}
	reaped    <-chan exitStatus
	tail      <-chan string // from the tail, capacity 1: the end of standard error
	timer     *time.Timer
	now       time.Time          // when the batch at hand was read
	rec       *recorder          // nil: none
	stopAsked context.CancelFunc // ends Session.asked

	// What waits to be scanned and to be written.
	cur       batch
	have      bool // cur is not used up
	scanner   scanner
	outq      []outgo
	outBytes  int
	flushes   int  // flush marks taken by the writer
	broken    bool // a write failed
	pending   []pending
	seenNames map[string]struct{} // unknown kinds and methods already logged

	// The process.
	status    *exitStatus // after the reap
	tailText  string
	tailEnded bool
	gone      bool // the exit was observed
	self      bool // and we had not asked for it
	signalled bool // the group was told to end
	mayReap   bool // the waiter was told that it may reap
	eof       bool // the stream has ended
	clockAt   time.Time
	drainLeft time.Duration // of the drain bound, as of clockAt
	drainRead int           // bytes read since the exit
	drained   bool          // given up: a descendant holds stdout

	// The session.
	id       string // our own, empty: not known yet
	deadID   string // of a load that was not confirmed
	info     Info
	noticed  bool   // the capability notice was given
	servers  bool   // the creating request carried tool servers
	gated    bool   // the notice about gated tools was given
	closer   string // method that ends the session through the protocol
	started  bool   // Start has handed the session out
	replay   *replay
	lost     *Error
	byEOF    bool // it was the stream's end
	stopping bool // leave run
	hurried  bool // a Stop's context has ended
	tearing  bool // teardown has begun

	// The turn.
	turn       *turn
	openPrompt int64  // a prompt whose turn ended without its answer; 0: none
	overBound  bool   // a line over the bound came since the last prompt: maybe its answer
	heldInput  string // a request between turns that ends the next turn
	pend       *[]Event
	queue      eventQueue
	msg        accumulated
	shape      shape
	tools      toolTable
	scratch    []byte

	// Deadlines; zero: none.
	eofBy, writeBy, bound time.Time
}

// outgo is one thing for the writer: a line, or nothing as a flush mark.
type outgo struct {
	line    []byte
	ours    bool // an answer or a notification of ours, which the backlog counts
	prompt  bool
	private bool // not for the transcript
	flush   bool
}

// answer is what a request came to.
type answer struct {
	result value
	err    error // *rpcError, errLost, or an *Error about the answer itself
}

type pending struct {
	id    int64
	reply chan<- answer // capacity 1
}

const (
	maxBacklog = 4 << 20 // SPEC 12: our answers and notifications that wait
	drainBound = 5 * time.Second
	drainMost  = 1<<20 + 4*largeBuf // bytes: the largest pipe, and what was on its way here
	exitWait   = 5 * time.Second    // for the exit after the stream's end, during the start
	statusWait = time.Second        // the same in a turn
)

func (l *loop) run() {
	defer close(l.s.done)
	for !l.stopping {
		l.step()
	}
	l.teardown()
}

// step handles one event and settles. It is the loop's only select.
func (l *loop) step() {
	inbox := l.inbox
	if l.have || l.held() {
		inbox = nil
	}
	var out chan<- outgo
	var next outgo
	if len(l.outq) > 0 {
		out, next = l.out, l.outq[0]
	}
	var events chan<- *[]Event
	var cancelled <-chan struct{}
	if t := l.turn; t != nil && t.state != turnOver {
		if l.pend != nil {
			events = t.events
		}
		if t.cause == nil {
			cancelled = t.ctx.Done()
		}
	}
	runs := inbox != nil || l.gone && l.drainRead > drainMost
	l.clock(true)
	l.arm(runs)
	select {
	case b := <-inbox:
		l.cur, l.have = b, true
		l.drainRead += min(len(b.lines), largeBuf)
		l.now = b.at
	case out <- next:
		l.taken(next)
	case events <- l.pend:
		if l.pend = nil; l.inTurn() {
			l.pend = l.queue.take()
		}
	case f := <-l.s.cmds:
		f(l)
	case <-cancelled:
		l.endTurn(fail(ErrTurnCancelled, "the turn was cancelled", context.Cause(l.turn.ctx)))
	case err := <-l.wfailed:
		l.clock(runs) // of the other bound
		l.writeFailed(err)
	case <-l.exited:
		l.clock(runs)
		l.observeExit()
	case st := <-l.reaped:
		l.status, l.reaped = &st, nil
	case l.tailText = <-l.tail:
		l.tailEnded, l.tail = true, nil
	case <-l.timer.C:
	}
	l.clock(runs)
	l.settle()
}

// clock counts the time since the last call against the bounds of a stream whose
// end is near, or leaves it out: a consumer that holds the reader back holds this
// clock too (SPEC 3), but not for more than what an exited runtime can have left
// behind. Our own work counts, or a descendant that writes faster than we read
// would stop the clock.
func (l *loop) clock(runs bool) {
	if !l.draining() && l.writeBy.IsZero() {
		return
	}
	now := time.Now()
	spent := now.Sub(l.clockAt)
	l.clockAt = now
	if runs {
		l.drainLeft -= spent
	} else if !l.writeBy.IsZero() {
		l.writeBy = l.writeBy.Add(spent)
	}
}

// draining reports that the exit was seen and the end of the stream was not.
func (l *loop) draining() bool { return l.gone && !l.eof && !l.tearing }

// arm sets the timer to the nearest deadline.
func (l *loop) arm(runs bool) {
	var by time.Time
	nearer := func(t time.Time) {
		if !t.IsZero() && (by.IsZero() || t.Before(by)) {
			by = t
		}
	}
	nearer(l.eofBy)
	nearer(l.bound)
	if l.turn != nil {
		nearer(l.turn.by)
	}
	if runs {
		nearer(l.writeBy)
		if l.draining() {
			nearer(l.clockAt.Add(l.drainLeft))
		}
	}
	if by.IsZero() {
		l.timer.Stop()
	} else {
		l.timer.Reset(time.Until(by))
	}
}

// settle scans what there is room for, then does what has become due.
func (l *loop) settle() {
	l.scanBatch()
	if l.eofBy.IsZero() && l.writeBy.IsZero() && !l.eof && !l.gone && (l.turn == nil || l.turn.by.IsZero()) {
		return
	}
	now := time.Now()
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if l.eof && (l.tearing || l.status != nil && l.tailEnded || due(l.eofBy)) {
		l.lose(l.lossError())
	}
	if due(l.writeBy) {
		l.lose(fail(ErrPortExit, "writing to the agent failed", nil))
	}
	if l.draining() && l.drainLeft <= 0 {
		l.abandonStream()
	}
	if t := l.turn; t != nil && t.state != turnOver && due(t.by) {
		l.turnDue(t)
	}
}

// scanBatch handles the lines of the current batch. While a turn is open it
// stops when the turn's events fill a batch of their own, so that a consumer
// that does not keep up holds the runtime back and not our memory.
func (l *loop) scanBatch() {
	for l.have && !l.full() {
		line, over, ok := l.cur.line()
		switch {
		case over:
			l.overlong()
		case ok:
			l.line(line)
		default:
			err := l.cur.err
			if l.cur.over {
				l.overlong()
			}
			l.scanner.drop()
			l.cur.release()
			l.cur, l.have = batch{}, false
			if err != nil {
				l.streamEnded()
			}
		}
	}
}

func (l *loop) streamEnded() {
	l.eof, l.inbox, l.writeBy = true, nil, time.Time{}
	wait := statusWait
	if !l.started {
		wait = exitWait
	}
	l.eofBy = time.Now().Add(wait)
}

// abandonStream stops waiting for a stream that a descendant keeps open behind
// the exited runtime.
func (l *loop) abandonStream() {
	l.log.Warn("agent stdout was not fully collected before the session ended", "drain_bound", drainBound)
	l.drained, l.inbox = true, nil
	l.lose(fail(ErrPortExit, "the agent runtime exited before the session finished collecting its output", nil))
}

// lossError says what became of the connection.
func (l *loop) lossError() *Error {
	var cause error
	if l.tailEnded && l.tailText != "" {
		cause = errors.New(l.tailText)
	}
	switch {
	case l.status == nil:
		return fail(ErrPortExit, "the agent connection was lost", nil)
	case l.cfg.ssh && l.status.code == 255:
		return fail(ErrPortExit, msgSSHFailed, cause)
	}
	return fail(ErrPortExit, "the agent connection was lost: "+l.status.text, cause)
}

// lose ends everything that waits for the runtime, once, and leads to the
// teardown.
func (l *loop) lose(err *Error) {
	l.eofBy, l.writeBy = time.Time{}, time.Time{}
	if l.lost == nil && !l.tearing {
		l.lost, l.byEOF = err, l.eof
		l.log.Warn("agent connection lost", "error", err.Message)
	}
	for _, p := range l.pending {
		p.reply <- answer{err: errLost}
	}
	l.pending = nil
	l.stopping = true
	if t := l.turn; t != nil && t.state != turnOver {
		l.finish(answer{err: err})
	}
}

func (l *loop) observeExit() {
	l.gone, l.exited = true, nil
	l.self = !l.signalled
	if l.tearing {
		return
	}
	// SPEC 3: the leader is still unreaped, so the group is still its own.
	l.drainLeft, l.clockAt, l.drainRead = drainBound, time.Now(), 0
	l.signal(true)
	l.allowReap()
}

func (l *loop) writeFailed(err error) {
	l.log.Debug("agent standard input failed", "error", err)
	l.wfailed, l.broken = nil, true
	l.endWriter()
	if !l.eof && !l.tearing {
		l.clockAt = time.Now()
		l.writeBy = l.clockAt.Add(l.cfg.readTimeout)
	}
}

// request queues a request whose answer goes to reply.
func (l *loop) request(id int64, line []byte, reply chan<- answer) {
	dead := l.lost != nil
	if l.tearing { // SPEC 10: in full, also behind a connection given up
		dead = l.streamOver() || l.broken
	}
	if dead {
		reply <- answer{err: errLost}
		return
	}
	l.pending = append(l.pending, pending{id, reply})
	l.enqueue(outgo{line: line})
}

func (l *loop) forget(id int64) {
	l.pending = slices.DeleteFunc(l.pending, func(p pending) bool { return p.id == id })
}

// enqueue hands an item to the writer when it is free. SPEC 12: what waits is
// bounded; a runtime that asks and never reads loses its connection.
func (l *loop) enqueue(o outgo) {
	if l.broken || l.out == nil {
		return
	}
	l.outq = append(l.outq, o)
	if !o.ours {
		return
	}
	if l.outBytes += len(o.line); l.outBytes > maxBacklog {
		l.outq, l.outBytes = nil, 0
		l.lose(fail(ErrPortExit, "the agent does not read what it is sent", nil))
	}
}

// taken notes that the writer took an item: all before it is in the pipe.
func (l *loop) taken(o outgo) {
	l.outq[0] = outgo{}
	if l.outq = l.outq[1:]; len(l.outq) == 0 {
		l.outq = nil
	}
	switch {
	case o.prompt:
		if l.turn != nil {
			l.turn.sent = true
		}
	case o.flush:
		l.flushes++
	case o.ours:
		l.outBytes -= len(o.line)
	}
}

// lower notes that a capability is a gap from now on.
func (l *loop) lower(entry *bool, label string) {
	switch {
	case !*entry:
	case l.noticed:
		l.log.Warn("agent capability lowered", "capability", label)
	default: // the first turn will say it
		l.log.Debug("agent capability lowered", "capability", label)
	}
	*entry = false
}
