package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/sortie-ai/acp"
)

// run is `acp run`.
func run(s *settings) int {
	prompts, err := readPrompts(s.prompts, os.Stdin)
	if err != nil {
		return wrongUsage("acp run", err)
	}
	cfg, err := s.config()
	if err != nil {
		return wrongUsage("acp run", err)
	}
	j := newJob("acp run", s)
	record, err := create(s.record)
	if err != nil {
		return wrongUsage("acp run", err)
	}
	if cfg.Logger, err = j.logger(); err != nil {
		return wrongUsage("acp run", err)
	}
	out := j.view(&cfg)
	if record != nil {
		cfg.Record = record
		if j.tap != nil {
			cfg.Record = io.MultiWriter(record, j.tap)
		}
	}
	stopWatching := j.watch()
	e := j.drive(cfg, prompts, out)
	out.over(e)
	stopWatching()
	return j.finish(e, record)
}

// A job is one use of the command: what ends it early, where its log goes.
type job struct {
	name   string
	set    *settings
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    *outlet
	tap    *toolTap // nil but on a terminal
	say    *logSink // for standard error
	finals []func() // what to do at the end, in this order
	live   liveSession
}

func newJob(name string, s *settings) *job {
	j := &job{name: name, set: s, say: newLogSink()}
	j.ctx, j.cancel = context.WithCancelCause(context.Background())
	j.out = &outlet{w: os.Stdout, failed: func(err error) {
		j.cancel(fmt.Errorf("standard output: %w", err))
	}}
	return j
}

// logger makes the log of -log-level and -log-file.
func (j *job) logger() (*slog.Logger, error) {
	to := j.say
	if j.set.logFile != "" {
		f, err := os.OpenFile(j.set.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("-log-file: %w", err)
		}
		to = newLogSink()
		j.finals = append(j.finals, to.drainTo(f), func() { j.complainIf(f.Close()) })
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: j.set.logLevel})), nil
}

// view chooses how the run is shown, and who writes standard error.
func (j *job) view(cfg *acp.Config) output {
	if j.set.json {
		j.finals = append(j.finals, j.say.drainTo(os.Stderr))
		return newJSONLines(j.out)
	}
	if _, _, ok := terminalSize(os.Stdout); !ok || !drawable(os.Stdout) {
		j.finals = append(j.finals, j.say.drainTo(os.Stderr))
		return &story{screen: &plainScreen{out: j.out}, resume: j.set.resume != ""}
	}
	logs := j.say
	if _, _, ok := terminalSize(os.Stderr); !ok {
		j.finals = append(j.finals, j.say.drainTo(os.Stderr))
		logs = newLogSink() // nothing comes
	}
	j.tap = &toolTap{}
	cfg.Record = j.tap
	p := &painter{
		out:    j.out,
		colour: os.Getenv("NO_COLOR") == "",
		size: func() (int, int) {
			cols, rows, _ := terminalSize(os.Stdout)
			return cols, rows
		},
		now: time.Now,
		tool: func() string {
			if j.ctx.Err() != nil {
				return "stopping"
			}
			return j.tap.current()
		},
	}
	st := &story{screen: newTerminal(p, logs), resume: j.set.resume != ""}
	st.status("starting", 0)
	return st
}

// drive runs the session from its start to its end.
func (j *job) drive(cfg acp.Config, prompts []string, out output) end {
	var e end
	a, err := acp.New(nil)
	if err != nil {
		return end{err: err, untold: err}
	}
	s, err := a.Start(j.ctx, cfg)
	if err != nil {
		return end{err: err, untold: err}
	}
	j.live.set(s)
	e.id = s.ID()
	out.ready(s.ID(), s.PID(), s.Info())
	for i, prompt := range prompts {
		out.turnStarts(i+1, len(prompts), prompt)
		e.turns++
		if err := j.turn(s, e.turns, prompt, out); err != nil {
			if e.err == nil {
				e.err = err
			}
			if !j.set.keepGoing || over(s) || j.ctx.Err() != nil {
				break
			}
		}
	}
	e.info = s.Info()
	out.stopping()
	if err := s.Stop(context.Background()); err != nil {
		e.untold = err
		if e.err == nil {
			e.err = err
		}
	}
	return e
}

// turn runs one turn with its two timeouts.
func (j *job) turn(s *acp.Session, n int, prompt string, out output) error {
	ctx, cancel := context.WithCancelCause(j.ctx)
	defer cancel(nil)
	if d := j.set.turnTimeout; d > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, d, fmt.Errorf("the turn took longer than %s", d))
		defer done()
	}
	onEvent := out.event
	if d := j.set.stallTimeout; d > 0 {
		stall := time.AfterFunc(d, func() { cancel(fmt.Errorf("no sign of life for %s", d)) })
		defer stall.Stop()
		onEvent = func(e acp.Event) {
			stall.Stop() // a slow terminal is no stall
			out.event(e)
			stall.Reset(d)
		}
	}
	began := time.Now()
	r, err := s.RunTurn(ctx, prompt, onEvent)
	if r.SessionID == "" { // refused: the session is over
		r.SessionID, r.ExitReason = s.ID(), acp.TurnFailed
	}
	out.turnEnds(n, r, err, time.Since(began))
	return err
}

// over reports whether the session has ended by itself.
func over(s *acp.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// finish closes the files and finds the exit status.
func (j *job) finish(e end, record *transcript) int {
	cause := context.Cause(j.ctx)
	for _, f := range j.finals {
		f()
	}
	if record != nil {
		j.complainIf(record.Close())
		if record.failed.Load() && e.err == nil {
			e.err = errors.New("the transcript could not be written")
			complain(j.name, e.err)
		}
	}
	switch {
	case errors.Is(cause, errInterrupted):
		return exitInterrupted
	case cause != nil:
		complain(j.name, cause)
		return exitFailed
	case e.err != nil:
		return exitFailed
	}
	return exitOK
}

// stopGrace is the package's, where the flag does not say another.
const stopGrace = 5 * time.Second

func or(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

func (j *job) complainIf(err error) {
	if err != nil {
		complain(j.name, err)
	}
}

// create makes a file that only its owner reads; nil for no name.
func create(name string) (*transcript, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) // #nosec G304 -- the user's own
	if err != nil {
		return nil, fmt.Errorf("-record: %w", err)
	}
	if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
		err = f.Chmod(0o600) // it may have been there before
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &transcript{File: f}, nil
}

// A transcript is the file of -record.
type transcript struct {
	*os.File
	failed atomic.Bool
}

func (t *transcript) Write(p []byte) (int, error) {
	n, err := t.File.Write(p)
	if err != nil {
		t.failed.Store(true)
	}
	return n, err
}
