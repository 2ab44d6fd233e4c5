package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sortie-ai/acp"
)

var errInterrupted = errors.New("interrupted")

// liveSession is the session that a second Ctrl-C kills.
type liveSession struct{ p atomic.Pointer[acp.Session] }

func (l *liveSession) set(s *acp.Session) { l.p.Store(s) }

// watch cancels the job at the first signal and kills at the second. It also
// keeps a closed pipe from killing this process ahead of the runtime: the
// failed write is seen instead.
func (j *job) watch() (stop func()) {
	sigs := make(chan os.Signal, 4) // sender: os/signal, never waiting
	pipe := make(chan os.Signal, 1) // not read
	signal.Notify(sigs, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(pipe, syscall.SIGPIPE)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends by quit
		defer close(done)
		for n := 1; ; n++ {
			select {
			case <-sigs:
				j.interrupted(n)
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(sigs)
		close(quit)
		<-done
	}
}

func (j *job) interrupted(n int) {
	s := j.live.p.Load()
	switch {
	case n == 1:
		j.cancel(errInterrupted)
		if s == nil {
			j.tell("interrupted: ending the runtime")
		} else {
			j.tell("interrupted: stopping; once more kills the runtime")
		}
		// A runtime that does not answer session/cancel is not waited for long.
		time.AfterFunc(or(j.set.stopGrace, stopGrace), j.stopLive)
	case s == nil && n == 2:
		// The start is being taken back, which nothing shortens.
		j.tell("still ending the runtime that was just started; once more leaves it behind")
	case s != nil && n == 2:
		gone, cancel := context.WithCancel(context.Background())
		cancel() // the graceful part is over at once
		j.complainIf(s.Stop(gone))
		// Now the run ends by itself, unless its output is stuck.
		time.AfterFunc(time.Second, func() { os.Exit(exitInterrupted) })
	default:
		os.Exit(exitInterrupted)
	}
}

// stopLive stops the session while its turn still runs.
func (j *job) stopLive() {
	if s := j.live.p.Load(); s != nil {
		_ = s.Stop(context.Background()) // the run's own Stop reports
	}
}

func (j *job) tell(s string) {
	_, _ = fmt.Fprintf(j.say, "%s: %s\n", j.name, s)
}
