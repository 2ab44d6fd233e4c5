package acp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// An Adapter serves every session of its process. The zero value is ready.
type Adapter struct {
	bufs    bufPool   // read buffers of all sessions
	batches sync.Pool // *[]Event, between a loop and its RunTurn
	created sync.Map  // creation -> time.Time, the last minute's (resume.go)
}

// New returns an Adapter for the agent-client-protocol block of a
// configuration; nil is an empty block. It fails, with the text of [Validate],
// when mcp_config has the wrong type.
func New(block map[string]any) (*Adapter, error) {
	if msg := mcpConfigType(block); msg != "" {
		return nil, errors.New(msg)
	}
	return &Adapter{}, nil
}

// A Session is one runtime process and the conversation in it. Its methods may
// be called from any goroutine.
type Session struct {
	adapter *Adapter
	launch  *launch
	log     *slog.Logger
	pid     int
	id      string // written before Start returns
	start   time.Time
	nextID  atomic.Int64   // the last request id used
	serving sync.WaitGroup // reader, writer and tail

	cmds   chan func(*loop) // callers to the loop, which runs them; unbuffered
	quit   chan struct{}    // closed by the loop: reader, let go
	asked  context.Context  // ended by the loop at the first Stop
	ending chan struct{}    // closed by the loop when the teardown begins
	done   chan struct{}    // closed by the loop, its last act
	end    epilogue         // written by the loop before done is closed

	agent agentInfo // the answer to initialize; written before Start returns
	meter *meter    // Start's, then RunTurn's
}

// epilogue is what is left to say of a session that is over.
type epilogue struct {
	info    Info
	err     *Error // of Stop
	lost    *Error // why the connection was lost; nil: stopped
	exit    *exitStatus
	eof     bool   // it was the stream's end
	self    bool   // the process exited before we asked it to
	lastErr string // the end of standard error, cleaned
}

// ID returns the session ID that the runtime created or confirmed.
func (s *Session) ID() string { return s.id }

// PID returns the process ID of the runtime's last start.
func (s *Session) PID() int { return s.pid }

// Info returns what is known of the session now.
func (s *Session) Info() Info {
	info := make(chan Info, 1)
	if s.do(func(l *loop) { info <- l.info }) {
		return <-info
	}
	return s.end.info
}

// Done returns a channel that is closed when the teardown is over, whoever
// began it.
func (s *Session) Done() <-chan struct{} { return s.done }

// Stop tears the session down (SPEC 10) and returns when nothing of it remains,
// at most the stop grace and 3 s later. The end of ctx shortens the graceful
// part only. It may be called any number of times; concurrent calls share one
// teardown. The error is nil, also after a forced kill, unless the process
// outlived even that or a temporary directory could not be removed.
func (s *Session) Stop(ctx context.Context) error {
	s.do(func(l *loop) { l.stopAsked(); l.stopping = true })
	select {
	case <-s.done:
	case <-ctx.Done():
		s.do(func(l *loop) { l.hurried = true })
		<-s.done
	}
	if s.end.err != nil {
		return s.end.err
	}
	return nil
}

// do has the loop run f on its goroutine. It reports false when the session is
// over and f will not run.
func (s *Session) do(f func(*loop)) bool {
	select {
	case s.cmds <- f:
		return true
	case <-s.done:
		return false
	}
}

// What a call can fail with, beside an *rpcError and an *Error.
var (
	errTimedOut = errors.New("no answer in time")
	errLost     = errors.New("connection lost")
)

// call sends a request and waits for its answer, at most limit. before, if not
// nil, is run by the loop just before the request is queued.
func (s *Session) call(ctx context.Context, limit time.Duration, method string, params any, before func(*loop)) (value, error) {
	if ctx.Err() != nil {
		return nil, fail(ErrTurnCancelled, msgStartCancelled, context.Cause(ctx))
	}
	id := s.nextID.Add(1)
	line := encodeRequest(id, method, params)
	reply := make(chan answer, 1)
	ok := s.do(func(l *loop) {
		if before != nil {
			before(l)
		}
		l.request(id, line, reply)
	})
	if !ok {
		return nil, errLost
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case a := <-reply:
		return a.result, a.err
	case <-timer.C:
		s.log.Debug("agent did not answer in time", "method", method)
		err = errTimedOut
	case <-ctx.Done():
		err = fail(ErrTurnCancelled, msgStartCancelled, context.Cause(ctx))
	}
	gone := make(chan bool, 1)
	if !s.do(func(l *loop) { l.forget(id); gone <- l.eof || l.broken }) {
		gone <- true
	}
	if <-gone && err == errTimedOut { // SPEC 2: the connection ended before the answer
		err = errLost
	}
	return nil, err
}

// open starts the runtime once and the goroutines that serve it.
func (a *Adapter) open(ctx context.Context, c *launch, m *meter, env []string) (*Session, *Error) {
	if err := checkWorkspace(c.workspace); err != nil { // SPEC 2.1: before every launch
		return nil, err
	}
	p, err := c.spawn(ctx, c.argv, c.dir, env, c.log)
	if err != nil {
		return nil, err
	}
	return a.attach(c, m, p), nil
}

// attach makes a session of a started process.
func (a *Adapter) attach(c *launch, m *meter, p *process) *Session {
	s := &Session{
		adapter: a, launch: c, pid: p.pid, start: time.Now(),
		log:    c.log.With("pid", p.pid),
		cmds:   make(chan func(*loop)),
		quit:   make(chan struct{}),
		meter:  m,
		ending: make(chan struct{}),
		done:   make(chan struct{}),
	}
	var stopAsked context.CancelFunc
	s.asked, stopAsked = context.WithCancel(context.Background())
	rec := newRecorder(s)
	inbox, out := make(chan batch, 1), make(chan outgo)
	failed, tail := make(chan error, 1), make(chan string, 1)
	lines := newLineReader(p.stdout, c.maxLine, &a.bufs)
	s.serving.Go(func() { s.read(lines, inbox, rec) })
	s.serving.Go(func() { s.write(p.stdin, out, failed, rec) })
	s.serving.Go(func() { s.keepTail(p.stderr, tail, rec) })
	l := &loop{
		s: s, cfg: c, p: p, log: s.log, rec: rec, stopAsked: stopAsked,
		inbox: inbox, out: out, wfailed: failed, tail: tail,
		exited: p.exited, reaped: p.reaped,
		timer: time.NewTimer(time.Hour),
		info:  Info{ToolServers: !c.ssh, TokenCounts: m.gauge != nil, SessionContinuation: true, VersionKnown: true},
	}
	if len(c.preamble) > 0 {
		l.enqueue(outgo{line: c.preamble, private: true})
	}
	go l.run() // ends with the teardown, which Stop or a lost connection begins
	return s
}

// now is a wall clock that never goes backwards.
func (s *Session) now() time.Time { return s.start.Add(time.Since(s.start)) }

// read hands the runtime's lines to the loop, in order, until the stream ends
// or its descriptor is closed.
func (s *Session) read(r *lineReader, inbox chan<- batch, rec *recorder) {
	for {
		var b batch
		r.next(&b)
		b.at = s.now()
		rec.batch(&b)
		err := b.err
		select {
		case inbox <- b:
		case <-s.quit:
			b.release()
			return
		}
		if err != nil {
			return
		}
	}
}

// write writes what the loop hands over. It ends when out is closed, or with a
// failed write: behind a line cut short nothing may follow.
func (s *Session) write(w io.WriteCloser, out <-chan outgo, failed chan<- error, rec *recorder) {
	defer func() { _ = w.Close() }() // the loop may have closed it before
	for o := range out {
		if len(o.line) == 0 {
			continue
		}
		if !o.private {
			rec.line("send", o.line)
		}
		if _, err := w.Write(o.line); err != nil {
			failed <- err
			return
		}
	}
}

const (
	keepStderr  = 64 << 10 // SPEC 12
	smallRead   = 128
	largeStderr = 32 << 10
)

// keepTail drains standard error and reports its end when it ends.
func (s *Session) keepTail(r io.Reader, tail chan<- string, rec *recorder) {
	var kept []byte
	cut := false
	buf := make([]byte, smallRead)
	for {
		n, err := r.Read(buf)
		rec.stderr(buf[:n])
		kept = append(kept, buf[:n]...)
		if len(kept) > 2*keepStderr {
			kept = append(kept[:0], kept[len(kept)-keepStderr:]...)
			cut = true
		}
		if err != nil {
			rec.stderrEnd()
			tail <- lastWords(kept, cut, s.launch.redact)
			return
		}
		if n == len(buf) && n < largeStderr {
			buf = make([]byte, 2*n)
		}
	}
}
