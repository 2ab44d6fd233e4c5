package script

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// player plays one scenario.
type player struct {
	*wire
	sc      *scenario
	ids     map[string]json.RawMessage // of the client's requests, by name
	report  *os.File                   // nil: none
	stopped bool                       // the inbox's gate is ours for good
	onTerm  bool                       // a handler of the graceful signal ends the process
}

func newPlayer(w *wire, sc *scenario) *player {
	p := &player{wire: w, sc: sc, ids: make(map[string]json.RawMessage)}
	if name := os.Getenv("FAKEAGENT_REPORT"); name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // #nosec G304 G703 -- a test names the file
		if err != nil {
			complain(w.err, "fakeagent: %v", err)
		} else {
			p.report = f
		}
	}
	return p
}

// exitStatus is the error of the exit step.
type exitStatus int

func (e exitStatus) Error() string { return "exit " + strconv.Itoa(int(e)) }

// run plays the steps and returns the exit status.
func (p *player) run() int {
	for i, s := range p.sc.Script {
		p.note("step %d %s", i+1, s.verb)
		err := p.do(s)
		var exit exitStatus
		switch {
		case err == nil:
			continue
		case errors.As(err, &exit):
			p.note("exit %d", int(exit))
			return int(exit)
		case errors.Is(err, errGone):
			p.note("gone step %d", i+1)
			p.leaveToHandler()
			return statusGone
		}
		p.note("failed step %d: %v", i+1, err)
		complain(p.err, "scenario %s step %d: %v", p.sc.ID, i+1, err)
		return statusFailed
	}
	p.note("end")
	p.leaveToHandler()
	return 0
}

// leaveToHandler waits for the handler of on_term_ms to end the process: the end
// of input comes behind the signal, and must not overtake it here.
func (p *player) leaveToHandler() {
	if p.onTerm {
		time.Sleep(time.Minute)
	}
}

func (p *player) note(format string, args ...any) {
	if p.report != nil {
		complain(p.report, format, args...)
	}
}

func (p *player) do(s step) error {
	switch s.verb {
	case "expect":
		return p.expect(s)
	case "expect_reply":
		return p.expectReply(s)
	case "expect_replies":
		return p.expectReplies(s)
	case "expect_none_ms":
		return p.expectNone(ms(s.ExpectNoneMS))
	case "wait_stdin_eof":
		_, err := p.in.next(0, func(*message) bool { return false })
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	case "answer_all":
		return newFriendly(p.wire, false).serve(s.Until)
	case "stop_reading":
		if !p.stopped {
			p.stopped = true
			p.in.stop()
		}
		return nil
	case "read_slow":
		if p.stopped {
			return errors.New("reading has been stopped")
		}
		p.in.gate.Lock()
		defer p.in.gate.Unlock()
		p.in.pause = ms(s.ReadSlowMS)
		return nil
	case "stderr":
		return p.writeStderr(strings.NewReader(s.Stderr))
	case "stderr_fill":
		return p.writeStderr(filler(s.StderrFill, s.OneLine))
	}
	if strings.HasPrefix(s.verb, "send") {
		return p.sending(s)
	}
	return p.process(s)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// expect waits for a message of the client with the step's method.
func (p *player) expect(s step) error {
	m, err := p.in.next(ms(s.WithinMS), func(m *message) bool { return m.Method == s.Expect })
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("no %s", s.Expect)
	}
	if err != nil {
		return err
	}
	name := s.As
	if name == "" {
		name = s.Expect
	}
	p.ids[name] = m.ID
	v, err := decode(m.raw)
	if err != nil {
		return err
	}
	for path, rule := range s.Require {
		broken := rule.broken(lookup(v, path))
		if broken == "" {
			continue
		}
		err := fmt.Errorf("%s of %s %s", path, s.Expect, broken)
		if len(m.ID) > 0 {
			text, _ := json.Marshal(err.Error()) // a string always encodes
			_ = p.reply(m.ID, `"error":{"code":-32602,"message":`+string(text)+`}`)
		}
		return err
	}
	return nil
}

// replyWait bounds the wait for an answer where the step sets no bound: the
// client must always answer.
const replyWait = 30 * time.Second

// expectReply waits for the client's answer to one request of the runtime.
func (p *player) expectReply(s step) error {
	id := []byte(s.ExpectReply)
	if bytes.Contains(id, []byte("${")) {
		var text string
		if err := json.Unmarshal(id, &text); err != nil {
			return err
		}
		var err error
		if id, err = p.fill([]byte(text)); err != nil {
			return err
		}
	}
	within := replyWait
	if s.WithinMS > 0 {
		within = ms(s.WithinMS)
	}
	m, err := p.in.next(within, func(m *message) bool { return m.reply() && bytes.Equal(m.ID, id) })
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("no reply to %s", id)
	}
	if err != nil {
		return err
	}
	if miss := missed(m.raw, s.Want); miss != "" {
		return fmt.Errorf("reply to %s: %s", id, miss)
	}
	return nil
}

// expectReplies waits for so many answers, whichever requests they are for.
func (p *player) expectReplies(s step) error {
	within := replyWait
	if s.WithinMS > 0 {
		within = ms(s.WithinMS)
	}
	for n := range s.ExpectReplies {
		m, err := p.in.next(within, (*message).reply)
		if errors.Is(err, errTimeout) {
			return fmt.Errorf("%d replies, not %d", n, s.ExpectReplies)
		}
		if err != nil {
			return err
		}
		if miss := missed(m.raw, s.Want); miss != "" {
			return fmt.Errorf("reply to %s: %s", m.ID, miss)
		}
	}
	return nil
}

// expectNone fails when the client writes anything. That it goes away is
// nothing written.
func (p *player) expectNone(d time.Duration) error {
	before := p.in.received()
	time.Sleep(d)
	if n := p.in.received() - before; n > 0 {
		return fmt.Errorf("the client wrote %d bytes", n)
	}
	return nil
}

var placeholder = regexp.MustCompile(`\$\{(id|idtext):[^}]*\}`)

// fill replaces ${id:NAME} and ${idtext:NAME}.
func (p *player) fill(b []byte) ([]byte, error) {
	var unbound error
	b = placeholder.ReplaceAllFunc(b, func(hit []byte) []byte {
		kind, name, _ := bytes.Cut(hit[2:len(hit)-1], []byte(":"))
		id, ok := p.ids[string(name)]
		if !ok {
			unbound = fmt.Errorf("no request is bound to %q", name)
		}
		if string(kind) == "idtext" {
			return bytes.Trim(id, `"`)
		}
		return id
	})
	return b, unbound
}

// sending does the steps that write to the client, who is not read meanwhile:
// a runtime of one thread.
func (p *player) sending(s step) error {
	if !p.stopped {
		p.in.gate.Lock()
		defer p.in.gate.Unlock()
	}
	switch s.verb {
	case "send":
		return p.sendLine(s)
	case "send_block":
		return p.send([]byte(strings.Join(s.SendBlock, "\n") + "\n"))
	case "send_b64":
		return p.sendB64([]string{s.SendB64}, 0)
	case "send_chunks_b64":
		return p.sendB64(s.SendChunksB64, ms(s.GapMS))
	case "send_fill":
		return p.sendFill(s)
	case "send_seq":
		return p.sendSeq(s)
	}
	return fmt.Errorf("unknown step %q", s.verb)
}

func (p *player) send(b []byte) error {
	b, err := p.fill(b)
	if err != nil {
		return err
	}
	return p.write(b)
}

func (p *player) sendLine(s step) error {
	line, eol := s.Send, "\n"
	if s.BOM {
		line = "\ufeff" + line
	}
	if s.EOL != nil {
		eol = *s.EOL
	}
	return p.send([]byte(line + eol))
}

func (p *player) sendB64(chunks []string, gap time.Duration) error {
	for i, chunk := range chunks {
		if i > 0 {
			time.Sleep(gap)
		}
		b, err := base64.StdEncoding.DecodeString(chunk)
		if err != nil {
			return err
		}
		if err := p.send(b); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) sendFill(s step) error {
	f := s.SendFill
	if err := p.send([]byte(f.Prefix)); err != nil {
		return err
	}
	block := bytes.Repeat([]byte(f.Byte), 64<<10)
	for left := f.Count * int64(len(f.Byte)); left > 0; left -= int64(len(block)) {
		block = block[:min(int64(len(block)), left)]
		if err := p.write(block); err != nil {
			return err
		}
	}
	return p.send([]byte(f.Suffix + "\n"))
}

func (p *player) sendSeq(s step) error {
	line, err := p.fill([]byte(s.SendSeq.Line + "\n"))
	if err != nil {
		return err
	}
	parts := bytes.Split(line, []byte("${i}"))
	out := bufio.NewWriterSize(writerFunc(p.write), 64<<10)
	for i := range s.SendSeq.N {
		number := strconv.AppendInt(nil, int64(i), 10)
		if _, err := out.Write(bytes.Join(parts, number)); err != nil {
			return err
		}
		if s.SendSeq.GapMS == 0 {
			continue
		}
		if err := out.Flush(); err != nil {
			return err
		}
		time.Sleep(ms(s.SendSeq.GapMS))
	}
	return out.Flush()
}

type writerFunc func([]byte) error

func (f writerFunc) Write(b []byte) (int, error) {
	if err := f(b); err != nil {
		return 0, err
	}
	return len(b), nil
}
