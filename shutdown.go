package acp

import (
	"errors"
	"time"
)

const (
	reapBound    = 2 * time.Second // SPEC 10.8
	discardBound = time.Second     // with it, Stop takes the grace and 3 s
)

// wait steps until there is true or the bound has passed. A graceful wait also
// ends when a Stop's context has ended.
func (l *loop) wait(bound time.Time, graceful bool, there func() bool) bool {
	l.bound = bound
	defer func() { l.bound = time.Time{} }()
	for !there() {
		if graceful && l.hurried || !time.Now().Before(bound) {
			return false
		}
		l.step()
	}
	return true
}

// teardown obeys SPEC 10: always in this order, each step safe on a session
// that is half started, lost or given up.
func (l *loop) teardown() {
	l.tearing = true
	close(l.s.ending)
	window := time.Now().Add(l.cfg.grace)
	half := func() time.Time { return time.Now().Add(time.Until(window) / 2) }

	// 1. Every request is answered as it comes, so what is open waits to be
	// written. The turn's session/cancel goes out with it.
	l.endTurn(fail(ErrTurnCancelled, "the session was stopped", nil))
	l.flush(half())

	// 2. session/close or session/delete.
	if l.closer != "" {
		l.closeSession(half())
	}

	// 3. The graceful signal.
	l.signal(false)

	// 4. Standard input, without waiting for the close.
	l.closeStdin()

	// 5. Behind a wrapper the runtime outlives the leader, so both must end.
	if !l.wait(window, true, func() bool { return l.gone && l.streamOver() }) {
		outcome := "grace elapsed"
		if l.hurried {
			outcome = "caller deadline"
		}
		l.log.Warn("agent did not exit inside the graceful period and was force-terminated",
			"outcome", outcome, "grace", l.cfg.grace)
	}

	// 6. The group, unconditionally, the leader still unreaped.
	l.signal(true)

	// 7. Standard output and the connection.
	close(l.s.quit)
	l.inbox = nil
	_ = l.p.stdout.Close() // nothing more is read: an error has no consequence
	l.lose(fail(ErrPortExit, "the session is stopped", nil))

	// 8. Reap, and the end of standard error.
	l.allowReap()
	l.wait(time.Now().Add(reapBound), false, func() bool { return l.status != nil && l.tailEnded })

	// 9. The pipes, and the source's directory when RunTurn has read it.
	if l.s.meter.gauge != nil {
		l.wait(time.Now().Add(l.cfg.readTimeout), false, func() bool { return l.turn == nil || l.s.asked.Err() != nil })
	}
	l.release()
}

// flush waits until all that is queued is in the pipe.
func (l *loop) flush(bound time.Time) {
	want := l.flushes + 1
	l.enqueue(outgo{flush: true})
	l.wait(bound, true, func() bool { return l.flushes >= want || l.broken || l.out == nil })
}

// closeSession ends the session through the protocol.
func (l *loop) closeSession(bound time.Time) {
	reply := make(chan answer, 1)
	id := l.s.nextID.Add(1)
	l.request(id, encodeRequest(id, l.closer, struct {
		SessionID string `json:"sessionId"`
	}{l.id}), reply)
	l.wait(bound, true, func() bool { return len(reply) > 0 || l.eof || l.broken })
	l.forget(id)
	var err error = errTimedOut
	if len(reply) > 0 {
		err = (<-reply).err
	}
	switch {
	case err == nil:
	case l.closer == "session/delete":
		l.log.Warn("agent session was not deleted", "error", err)
	default:
		l.log.Debug("agent session was not closed", "error", err)
	}
}

// streamOver reports that all of standard output was handled.
func (l *loop) streamOver() bool { return l.eof || l.drained }

// signal tells the group to end, or kills it: never after the reap was allowed,
// when the group's number may be another's.
func (l *loop) signal(kill bool) {
	if l.mayReap {
		return
	}
	l.signalled = true
	if err := l.p.signal(kill); err != nil {
		l.log.Debug("agent process group was not signalled", "kill", kill, "error", err)
	}
}

func (l *loop) allowReap() {
	if !l.mayReap {
		l.mayReap = true
		close(l.p.mayReap)
	}
}

// endWriter lets the writer end, which it may have done after a failed write.
func (l *loop) endWriter() {
	l.outq, l.outBytes = nil, 0
	if l.out != nil {
		close(l.out)
		l.out = nil
	}
}

// closeStdin closes the pipe from here where that is safe under a blocked write.
func (l *loop) closeStdin() {
	l.endWriter()
	if closeUnblocks {
		_ = l.p.stdin.Close() // the writer closes it too, whoever comes second fails
	}
}

// discardUsage removes the source's directory. The runtime may have filled it:
// what takes too long is left behind, and Stop says so.
func (l *loop) discardUsage() {
	s := l.s
	if s.meter.gauge == nil {
		return
	}
	removed := make(chan error, 1)
	go func() { removed <- s.meter.discard() }() // ends with the removal
	timer := time.NewTimer(discardBound)
	defer timer.Stop()
	var err error
	select {
	case err = <-removed:
	case <-timer.C:
		err = errors.New("its removal takes too long")
	}
	if err != nil {
		l.log.Warn("usage directory was not removed", "error", err)
		s.end.err = fail(ErrPortExit, "the directory for usage figures was not removed", err)
	}
}

// release gives back what the session still holds and says what it cannot.
func (l *loop) release() {
	s := l.s
	_ = l.p.stderr.Close()
	_ = l.p.stdin.Close()
	s.serving.Wait() // reader, writer and tail: their descriptors are closed
	if l.have {
		l.cur.release()
	}
	if !l.tailEnded {
		l.tailText = <-l.tail
	}
	if l.rec != nil {
		if l.self && l.status != nil {
			l.rec.line("note", []byte(l.status.text))
		}
		l.rec.finish()
	}
	l.discardUsage()
	e := &s.end
	e.info, e.lost, e.exit, e.self, e.eof, e.lastErr = l.info, l.lost, l.status, l.self, l.byEOF, l.tailText
	if l.status == nil {
		l.log.Error("agent process outlived its kill")
		e.err = fail(ErrPortExit, "the agent process outlived its kill", nil)
	}
	l.timer.Stop()
	l.stopAsked()
}
