package acp

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A transcript is what a recorder wrote.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
	do   func(n int) error // before the nth write; nil: nothing
	n    int
}

func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.n++
	n, do := w.n, w.do
	w.mu.Unlock()
	if do != nil {
		if err := do(n); err != nil {
			return 0, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

// lines returns the entries as "dir line", in order.
func (w *transcript) lines(t *testing.T) (list []string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := -1.0
	for line := range strings.Lines(w.text.String()) {
		var e struct {
			T         *float64
			Dir, Line string
			B64       *string
		}
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil || e.T == nil || *e.T < last {
			t.Errorf("%v in %s", err, line)
			continue
		}
		last = *e.T
		if e.B64 != nil {
			raw, err := base64.StdEncoding.DecodeString(*e.B64)
			if err != nil {
				t.Error(err)
			}
			e.Line = "b64 " + string(raw)
		}
		list = append(list, e.Dir+" "+e.Line)
	}
	return list
}

// TestTranscript: what was sent and received, exact and in order, with standard
// error, and never an answer before its request.
func TestTranscript(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var rec transcript
		r.c.record = &rec
		r.c.redact = func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
		r.began(func(w wire) {
			r.send("garbage <&>\u2028", "bad hunter2 \xff", `{"method":"x","params":"hunter2"}`, "", answerLine(w, `{"stopReason":"end_turn"}`))
			r.say("one hun")
			synctest.Wait()
			r.say("ter2\ntwo\nthree")
		})
		r.turn(t.Context())
		r.stopped(t.Context())
		got := rec.lines(t)
		var want []string
		for _, w := range r.got {
			want = append(want, "send "+w.raw)
			switch w.Method {
			case "initialize":
				want = append(want, "recv "+answerLine(w, r.caps))
			case "session/new":
				want = append(want, "recv "+answerLine(w, `{"sessionId":"s1"}`))
			case "session/prompt":
				want = append(want, "recv garbage <&>\u2028", "recv b64 bad *** \xff", `recv {"method":"x","params":"***"}`, "recv ", "recv "+answerLine(w, `{"stopReason":"end_turn"}`))
			case "session/close":
				want = append(want, "recv "+answerLine(w, `{}`))
			}
		}
		errs := []string{"stderr one ***", "stderr two", "stderr three"}
		isErr := func(s string) bool { return strings.HasPrefix(s, "stderr") }
		notErr := func(s string) bool { return !isErr(s) }
		if g := slices.DeleteFunc(slices.Clone(got), isErr); !slices.Equal(g, want) {
			t.Errorf("the transcript is\n%s\nwant\n%s", strings.Join(g, "\n"), strings.Join(want, "\n"))
		}
		if g := slices.DeleteFunc(got, notErr); !slices.Equal(g, errs) {
			t.Errorf("of standard error: %q", g)
		}
	})
}

// TestTranscriptSecrets: what the MCP configuration holds in env and headers
// is redacted, quoted or not.
func TestTranscriptSecrets(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var rec transcript
		r.c.record = &rec
		r.c.servers = []mcpServer{{name: "a", kind: "stdio", command: "x",
			env: []mcpPair{{"KEY", "s3cret"}, {"ODD", "a\"b\\<c"}, {"PEM", "line-0\r\nline-1"}, {"JSON", " {\n\t\"a\":\t\"walrus\"\n}"}}, headers: []mcpPair{{"H", "h3ader"}}}}
		r.c.hideSecrets(Config{})
		r.handle("session/new", func(w wire) {
			r.send("you said s3cret")
			r.say(`and a"b\<c and h3ader` + "\nline-0\nline-1\n")
			r.answer(w, `{"sessionId":"s1"}`)
		})
		r.start()
		r.stopped(t.Context())
		if got := rec.text.String(); strings.Contains(got, "s3cret") || strings.Contains(got, "<c") || strings.Contains(got, "h3ader") || strings.Contains(got, "line-") ||
			strings.Count(got, "[redacted]") < 4 {
			t.Errorf("the transcript is\n%s", got)
		}
	})
}

// TestTranscriptOverlong leaves a note.
func TestTranscriptOverlong(t *testing.T) {
	bubble(t, func(t *testing.T, r *stage) {
		var rec transcript
		r.c.record = &rec
		r.start()
		r.send(strings.Repeat("x", 3<<20), "behind")
		synctest.Wait()
		r.stopped(t.Context())
		got := rec.lines(t)
		i := slices.Index(got, "recv behind")
		if i < 1 || got[i-1] != "note a line over the bound was dropped" {
			t.Errorf("%.300q", got)
		}
	})
}

// TestTranscriptGivenUp: the session waits for its writer 1 s in all, and an
// error ends it; each time with one warning, and the session goes on.
func TestTranscriptGivenUp(t *testing.T) {
	tests := []struct {
		name   string
		do     func(n int) error
		slower time.Duration // the session, at most
		knows  string        // the record
	}{
		{"a writer that blocks", func(n int) error {
			if n > 3 {
				time.Sleep(time.Hour)
			}
			return nil
		}, time.Second, "session_id=s1"},
		{"a slow one", func(int) error { time.Sleep(10 * time.Millisecond); return nil }, time.Second, "session_id=s1"},
		{"one that fails", func(n int) error {
			if n > 3 {
				return io.ErrShortWrite
			}
			return nil
		}, 0, "pid="},
		{"one that fails at once", func(int) error { return errors.New("disk full") }, 0, "pid="},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *stage) {
				r.c.record = &transcript{do: tc.do}
				began := time.Now()
				r.began(func(w wire) {
					for range 500 {
						r.send(chunk("x"))
						r.say("err\n")
					}
					r.stop(w, "end_turn")
				})
				for range 3 {
					wantError(t, r.turn(t.Context()).err, "")
				}
				r.stopped(t.Context())
				// Reader, writer and tail may wait at the same time.
				if took := time.Since(began); took > 3*tc.slower {
					t.Errorf("the session took %v", took)
				}
				if n := r.log.count("WARN transcript given up", tc.knows); n != 1 {
					t.Errorf("%d warnings", n)
				}
				time.Sleep(2 * time.Hour) // lets the writer go
			})
		})
	}
}
