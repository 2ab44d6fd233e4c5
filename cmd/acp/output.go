package main

import (
	"io"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/sortie-ai/acp"
)

// An output shows a run. Its methods are called one at a time, over last.
type output interface {
	ready(id string, pid int, info acp.Info)
	turnStarts(n, of int, prompt string)
	event(e acp.Event)
	turnEnds(n int, r acp.Result, err error, took time.Duration)
	stopping()
	over(e end)
}

// end is how a run went.
type end struct {
	id    string // empty: the session did not start
	turns int
	info  acp.Info

	err    error // the first one of the run
	untold error // one that belongs to no turn
}

// An outlet is standard output. After the first failed write, a reader that
// went away above all, it takes everything and writes nothing.
type outlet struct {
	w      io.Writer
	failed func(error) // called once
	dead   bool
}

func (o *outlet) Write(p []byte) (int, error) {
	if o.dead {
		return len(p), nil
	}
	if _, err := o.w.Write(p); err != nil {
		o.dead = true
		o.failed(err)
	}
	return len(p), nil
}

// A logSink takes log lines from the session's goroutines, which must never
// wait, and hands them to whoever shows them. It is never closed: a record may
// come behind the end of a run.
type logSink struct {
	lines chan []byte // senders: anyone, never waiting; receiver: drain or the painter
	lost  atomic.Int64
}

func newLogSink() *logSink { return &logSink{lines: make(chan []byte, 256)} }

func (l *logSink) Write(p []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), p...):
	default:
		l.lost.Add(1)
	}
	return len(p), nil
}

// drainTo writes the lines to w until finish is called, which waits for what
// is already there.
func (l *logSink) drainTo(w io.Writer) (finish func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends by quit
		defer close(done)
		for {
			select {
			case line := <-l.lines:
				_, _ = w.Write(line) // a log that cannot be written is no reason to stop
			case <-quit:
				l.rest(w)
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (l *logSink) rest(w io.Writer) {
	for {
		select {
		case line := <-l.lines:
			_, _ = w.Write(line)
		default:
			if l.lost.Load() > 0 {
				_, _ = io.WriteString(w, "acp: some log lines were lost, since they came faster than they could be written\n")
			}
			return
		}
	}
}

// oneLine makes text of any origin fit for one line of a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, strings.TrimSpace(s))
}
