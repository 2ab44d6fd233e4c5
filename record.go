package acp

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// patience is how long the session's goroutines wait in all for the writer of
// the transcript.
const patience = time.Second

// recorder writes the transcript of one session. A nil one records nothing.
type recorder struct {
	lines  chan entry    // from reader, writer, tail and loop; closed by finish
	dead   chan struct{} // closed by the recorder's goroutine: it takes nothing more
	spent  atomic.Int64  // nanoseconds waited so far
	start  time.Time
	log    atomic.Pointer[slog.Logger]
	hide   func(string) string
	errEnd []byte // the tail's: the begun line of standard error
}

type entry struct {
	T    float64 `json:"t"` // milliseconds since the start
	Dir  string  `json:"dir"`
	Line *string `json:"line,omitempty"`
	B64  []byte  `json:"b64,omitempty"`
}

func newRecorder(s *Session) *recorder {
	w := s.launch.record
	if w == nil {
		return nil
	}
	r := &recorder{
		lines: make(chan entry, 8), dead: make(chan struct{}), start: s.start, hide: s.launch.redact,
	}
	r.log.Store(s.log)
	go r.write(w) // ends when lines is closed or the writer fails
	return r
}

// line records one line, a copy of it. It may wait, a second in all over the
// session; then the transcript is given up.
func (r *recorder) line(dir string, line []byte) {
	if r == nil {
		return
	}
	e := entry{T: float64(time.Since(r.start).Microseconds()) / 1000, Dir: dir}
	line = bytes.TrimSuffix(line, []byte("\n"))
	if utf8.Valid(line) {
		text := string(line)
		e.Line = &text
	} else {
		e.B64 = bytes.Clone(line)
	}
	select {
	case <-r.dead:
		return
	case r.lines <- e:
		return
	default:
	}
	left := patience - time.Duration(r.spent.Load())
	if left <= 0 {
		return
	}
	began := time.Now()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case r.lines <- e:
	case <-r.dead:
	case <-timer.C:
	}
	r.spend(time.Since(began))
}

// spend takes from the patience. What uses it up gives the transcript up.
func (r *recorder) spend(waited time.Duration) {
	spent := r.spent.Add(int64(waited))
	if was := spent - int64(waited); was < int64(patience) && spent >= int64(patience) {
		r.log.Load().Warn("transcript given up", "error", "its writer blocks")
	}
}

// batch records the lines that the runtime wrote.
func (r *recorder) batch(b *batch) {
	if r == nil {
		return
	}
	for line := range bytes.Lines(b.lines) {
		r.line("recv", line)
	}
	if b.over {
		r.line("note", []byte("a line over the bound was dropped"))
	}
}

// stderr records standard error by lines; stderrEnd what was left of the last.
func (r *recorder) stderr(p []byte) {
	if r == nil {
		return
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			i = len(p) - 1
		} else if r.errEnd == nil {
			r.line("stderr", p[:i])
			p = p[i+1:]
			continue
		}
		r.errEnd = append(r.errEnd, p[:i+1]...)
		if p[i] == '\n' || len(r.errEnd) > keepStderr {
			r.stderrEnd()
		}
		p = p[i+1:]
	}
}

func (r *recorder) stderrEnd() {
	if r != nil && len(r.errEnd) > 0 {
		r.line("stderr", r.errEnd)
		r.errEnd = nil
	}
}

func (r *recorder) write(w io.Writer) {
	defer close(r.dead)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for e := range r.lines {
		if e.Line != nil {
			text := r.hide(*e.Line)
			e.Line = &text
		}
		e.B64 = []byte(r.hide(string(e.B64)))
		if r.spent.Load() >= int64(patience) {
			return
		}
		if err := enc.Encode(e); err != nil {
			r.log.Load().Warn("transcript given up", "error", err)
			return
		}
	}
}

// finish ends the transcript when all who record have ended. It waits for the
// writer as long as there is patience left.
func (r *recorder) finish() {
	close(r.lines)
	timer := time.NewTimer(patience - time.Duration(r.spent.Load()))
	defer timer.Stop()
	select {
	case <-r.dead:
	case <-timer.C:
		r.spend(patience)
	}
}
