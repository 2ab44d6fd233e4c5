package acp

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests of the session run it over a process that exists in memory only,
// inside a bubble with a clock of its own. So every duration is exact, and
// nothing that a test started can be left when it ends.

// A pipe stands between us and the runtime. What it has room for is written
// without waiting.
type pipe struct {
	mu                 sync.Mutex
	change             sync.Cond
	data               []byte
	room               int
	stuck              bool // nobody reads
	noWriter, noReader bool
}

func newPipe(room int) *pipe {
	p := &pipe{room: room}
	p.change.L = &p.mu
	return p
}

func (p *pipe) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.change.Broadcast()
}

// An end is one of the two of a pipe. closed, if not nil, is called when it is
// closed.
type end struct {
	*pipe
	closed func()
	once   sync.Once
	own    *bool
}

func (e *end) Close() error {
	err := os.ErrClosed
	e.once.Do(func() {
		err = nil
		if e.closed != nil {
			e.closed()
		}
		e.set(func() { *e.own = true })
	})
	return err
}

func (e *end) Read(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.noReader && (e.stuck || len(e.data) == 0 && !e.noWriter) {
		e.change.Wait()
	}
	switch {
	case e.noReader:
		return 0, os.ErrClosed
	case len(e.data) == 0:
		return 0, io.EOF
	}
	n := copy(b, e.data)
	e.data = e.data[n:]
	e.change.Broadcast()
	return n, nil
}

func (e *end) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := 0; ; {
		for !e.noReader && !e.noWriter && len(e.data) >= e.room && n < len(b) {
			e.change.Wait()
		}
		switch {
		case e.noWriter:
			return n, os.ErrClosed
		case e.noReader:
			return n, syscall.EPIPE
		case n == len(b):
			return n, nil
		}
		more := min(len(b)-n, e.room-len(e.data))
		e.data = append(e.data, b[n:n+more]...)
		n += more
		e.change.Broadcast()
	}
}

// A wire is one message of ours, as the runtime saw it.
type wire struct {
	ID                    json.RawMessage
	Method                string
	Params, Result, Error json.RawMessage

	raw string
	at  time.Time
}

// A peer plays the runtime. Its handlers run one after the other, on the
// goroutine that reads what we write.
type peer struct {
	t                     *testing.T
	proc                  *process
	stdin, stdout, stderr *pipe
	on                    map[string]func(w wire) // by method; none: it is left unanswered
	caps                  string                  // what initialize is answered with
	id                    string                  // of the session that session/new makes

	exited chan struct{}
	status chan exitStatus

	mu       sync.Mutex
	onSignal func(kill bool)
	order    []string // what was done to the process
	got      []wire
	ended    bool
}

const (
	pipeRoom = 64 << 10
	noLimit  = 1 << 30
	plainCap = `{"protocolVersion":1,"agentInfo":{"name":"peer","version":"1.2"},"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"close":{}}}}`
)

func newPeer(t *testing.T) *peer {
	p := &peer{
		t: t, stdin: newPipe(pipeRoom), stdout: newPipe(noLimit), stderr: newPipe(noLimit),
		caps: plainCap, id: "s1",
		exited: make(chan struct{}), status: make(chan exitStatus, 1),
	}
	p.on = map[string]func(wire){
		"initialize":    func(w wire) { p.answer(w, p.caps) },
		"session/new":   func(w wire) { p.answer(w, `{"sessionId":"`+p.id+`"}`) },
		"session/close": func(w wire) { p.answer(w, `{}`) },
	}
	p.onSignal = func(kill bool) {
		if kill {
			p.exit("signal: killed", -1)
		} else {
			p.exit("signal: terminated", -1)
		}
	}
	mayReap, reaped := make(chan struct{}), make(chan exitStatus, 1)
	p.proc = &process{
		pid:    4711,
		stdin:  &end{pipe: p.stdin, own: &p.stdin.noWriter, closed: p.noting("stdin closed")},
		stdout: &end{pipe: p.stdout, own: &p.stdout.noReader, closed: p.noting("stdout closed")},
		stderr: &end{pipe: p.stderr, own: &p.stderr.noReader, closed: p.noting("stderr closed")},
		signal: func(kill bool) error {
			select {
			case <-mayReap:
				t.Error("the group was signalled after the reap was allowed")
			default:
			}
			p.note(map[bool]string{true: "kill", false: "terminate"}[kill])
			p.mu.Lock()
			f := p.onSignal
			p.mu.Unlock()
			f(kill)
			return nil
		},
		exited: p.exited, mayReap: mayReap, reaped: reaped,
	}
	go func() { // the waiter; ends with the exit and the leave to reap
		st := <-p.status
		close(p.exited)
		<-mayReap
		p.note("reaped")
		reaped <- st
	}()
	go p.serve(&end{pipe: p.stdin, own: &p.stdin.noReader}) // ends with either end of standard input
	return p
}

func (p *peer) noting(what string) func() { return func() { p.note(what) } }

func (p *peer) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order = append(p.order, what)
}

func (p *peer) noted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

func (p *peer) serve(in *end) {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		w := wire{raw: strings.TrimSuffix(string(line), "\n"), at: time.Now()}
		var version struct{ JSONRPC string }
		if json.Unmarshal(line, &w) != nil || json.Unmarshal(line, &version) != nil || version.JSONRPC != "2.0" {
			p.t.Errorf("we wrote a line that is no message: %q", line)
		}
		p.mu.Lock()
		p.got = append(p.got, w)
		if w.Method == "session/close" || w.Method == "session/delete" {
			p.order = append(p.order, w.Method)
		}
		handle := p.on[w.Method]
		p.mu.Unlock()
		if handle != nil {
			handle(w)
		}
	}
}

// handle sets what becomes of a method.
func (p *peer) handle(method string, f func(w wire)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on[method] = f
}

// signalled sets what becomes of a signal.
func (p *peer) signalled(f func(kill bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onSignal = f
}

// sent returns our messages of that method; "" are answers.
func (p *peer) sent(method string) (list []wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.got {
		if w.Method == method {
			list = append(list, w)
		}
	}
	return list
}

// send writes lines to standard output, in one piece.
func (p *peer) send(lines ...string) {
	p.stdout.set(func() {
		for _, l := range lines {
			p.stdout.data = append(append(p.stdout.data, l...), '\n')
		}
	})
}

func (p *peer) say(text string) {
	p.stderr.set(func() { p.stderr.data = append(p.stderr.data, text...) })
}

func answerLine(w wire, result string) string {
	return `{"jsonrpc":"2.0","id":` + string(w.ID) + `,"result":` + result + `}`
}

func errorLine(w wire, err string) string {
	return `{"jsonrpc":"2.0","id":` + string(w.ID) + `,"error":` + err + `}`
}

func (p *peer) answer(w wire, result string) { p.send(answerLine(w, result)) }
func (p *peer) refuse(w wire, err string)    { p.send(errorLine(w, err)) }
func (p *peer) stop(w wire, reason string)   { p.answer(w, `{"stopReason":"`+reason+`"}`) }

// update makes a session/update of the session s1 from its update.
func update(u string) string { return updateOf("s1", u) }

func updateOf(id, u string) string {
	return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"` + id + `","update":` + u + `}}`
}

func chunk(text string) string {
	return update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + js(text) + `}}`)
}

func chunkOf(messageID, text string) string {
	return update(`{"sessionUpdate":"agent_message_chunk","messageId":` + js(messageID) + `,"content":{"type":"text","text":` + js(text) + `}}`)
}

func request(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

func js(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// flood makes n requests whose answers have about 1 KiB each.
func flood(n int) string {
	return strings.TrimSuffix(strings.Repeat(request(floodID, "fs/x", `{}`)+"\n", n), "\n")
}

var floodID = `"` + strings.Repeat("x", 1000) + `"`

// asksInVain makes the runtime one that asks and does not read: 4 MiB of
// answers and more.
func (p *peer) asksInVain() {
	p.stdin.set(func() { p.stdin.stuck, p.stdin.room = true, 10 })
	p.send(flood(4500))
}

// hangUp ends standard output and standard error; the process lives on.
func (p *peer) hangUp() {
	p.stdout.set(func() { p.stdout.noWriter = true })
	p.stderr.set(func() { p.stderr.noWriter = true })
}

// die ends the process and leaves its output open, as a descendant would.
func (p *peer) die(text string, code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended = true
		p.status <- exitStatus{text, code}
	}
}

// exit ends the process, and with it its ends of the pipes.
func (p *peer) exit(text string, code int) {
	p.hangUp()
	p.stdin.set(func() { p.stdin.noReader = true })
	p.die(text, code)
}
