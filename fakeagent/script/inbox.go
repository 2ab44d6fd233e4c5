package script

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// message is one line of the client.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	raw    []byte
}

// reply reports whether the message answers a request of the runtime.
func (m *message) reply() bool { return m.Method == "" && len(m.ID) > 0 }

// errTimeout says that a message did not come in time.
var errTimeout = errors.New("timed out")

// inbox reads the client's lines in the background and keeps them until a step
// asks for them.
type inbox struct {
	r       io.ReadCloser
	gate    sync.Mutex    // who holds it keeps the inbox from reading on
	pause   time.Duration // above 0: one byte a read, and this between two; under gate
	reading sync.Mutex    // held while a read is under way

	mu       sync.Mutex
	messages []*message
	count    int           // bytes read
	err      error         // why nothing more comes: errGone, or a line that is no JSON
	news     chan struct{} // holds one value when something above has changed
}

func newInbox(r io.ReadCloser) *inbox {
	in := &inbox{r: r, news: make(chan struct{}, 1)}
	go in.read() // ends with stdin, or with the process
	return in
}

func (in *inbox) read() {
	buf := make([]byte, 32<<10)
	var line []byte
	for {
		in.gate.Lock()
		in.reading.Lock()
		pause := in.pause
		in.gate.Unlock()
		b := buf
		if pause > 0 {
			time.Sleep(pause)
			b = buf[:1]
		}
		n, err := in.r.Read(b)
		in.reading.Unlock()
		line = append(line, b[:n]...)
		bad := in.take(&line, n)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// stop interrupted the read; the gate holds the next one.
		case bad != nil:
			in.end(bad)
			return
		case err != nil:
			in.end(errGone)
			return
		}
	}
}

// take moves the whole lines of buf into the inbox.
func (in *inbox) take(buf *[]byte, n int) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	defer in.tell()
	in.count += n
	for {
		line, rest, found := bytes.Cut(*buf, []byte("\n"))
		if !found {
			return nil
		}
		m := &message{raw: bytes.Clone(line)}
		if err := json.Unmarshal(m.raw, m); err != nil {
			return fmt.Errorf("the client wrote a line that is no message: %.100q", m.raw)
		}
		in.messages = append(in.messages, m)
		*buf = append((*buf)[:0], rest...)
	}
}

func (in *inbox) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = err
	in.tell()
}

func (in *inbox) tell() {
	select {
	case in.news <- struct{}{}:
	default:
	}
}

// next takes the first message that matches, waiting for it; within 0 is
// without a limit. It fails with errTimeout, errGone, or what else ended the
// stream.
func (in *inbox) next(within time.Duration, match func(*message) bool) (*message, error) {
	var timeout <-chan time.Time
	if within > 0 {
		timer := time.NewTimer(within)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		in.mu.Lock()
		for i, m := range in.messages {
			if match(m) {
				if i == 0 { // the usual case, without a copy
					in.messages = in.messages[1:]
				} else {
					in.messages = append(in.messages[:i:i], in.messages[i+1:]...)
				}
				in.mu.Unlock()
				return m, nil
			}
		}
		err := in.err
		in.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-in.news:
		case <-timeout:
			return nil, errTimeout
		}
	}
}

// putBack makes m the next message.
func (in *inbox) putBack(m *message) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.messages = append([]*message{m}, in.messages...)
}

// received is how many bytes the client has written so far.
func (in *inbox) received() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.count
}

// stop holds the gate for good, and ends a read under way where the platform
// can; elsewhere that read still takes what comes next.
func (in *inbox) stop() {
	in.gate.Lock()
	f, ok := in.r.(interface{ SetReadDeadline(time.Time) error })
	if ok && f.SetReadDeadline(time.Now()) == nil {
		in.reading.Lock()
	}
}

func anyMessage(*message) bool { return true }
