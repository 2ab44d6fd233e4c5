package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Whatever a runtime does to the file, what was counted stays counted, nothing
// blocks, and what comes behind a broken bound does not count.
func TestHostileTelemetry(t *testing.T) {
	t.Parallel()
	one := answerRecord(1)
	for _, tt := range []struct {
		name string
		do   func(r *rig, file string)
		want figure // with one record before and one behind
	}{
		{"nothing", func(*rig, string) {}, modelCalls(2)},
		{"just the unread that is allowed", func(r *rig, file string) { growFile(r.t, file, maxUnread) }, modelCalls(2)},
		{"too much unread", func(r *rig, file string) { growFile(r.t, file, maxUnread+1) }, modelCalls(1)},
		{"a value of the size that is allowed", func(r *rig, file string) {
			appendFile(r.t, file, `{"a":"`+strings.Repeat("x", maxValue-8)+`"}`)
		}, modelCalls(2)},
		{"a value above that", func(r *rig, file string) {
			appendFile(r.t, file, `{"a":"`+strings.Repeat("x", maxValue)+`"}`)
		}, modelCalls(1)},
		{"shrunk", func(r *rig, file string) {
			if err := os.Truncate(file, 3); err != nil {
				r.t.Fatal(err)
			}
		}, modelCalls(1)},
		{"replaced", func(r *rig, file string) { r.replace(file, one+one+one) }, modelCalls(1)},
		{"removed and made again", func(r *rig, file string) {
			if err := os.Rename(file, file+".old"); err != nil {
				r.t.Fatal(err)
			}
			appendFile(r.t, file, one+one+one)
		}, modelCalls(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.begin("s")
			file := filepath.Join(r.dir, telemetryFile)
			r.telemetry(one)
			r.read()
			tt.do(r, file)
			r.read()
			r.telemetry(one)
			if got := r.read(); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestHostileJournal(t *testing.T) {
	t.Parallel()
	const file = "a.jsonl"
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want figure // with one message before and one behind
	}{
		{"nothing", func(*rig) {}, modelCalls(2)},
		{"too much unread", func(r *rig) { growFile(r.t, r.chatPath(file), maxUnread+1) }, modelCalls(1)},
		{"too much unread in several files", func(r *rig) {
			for i := range 3 {
				name := fmt.Sprintf("0%d.jsonl", i)
				r.chat(name, chatHeader)
				growFile(r.t, r.chatPath(name), maxUnread/2)
			}
		}, modelCalls(1)},
		{"a line that does not end", func(r *rig) {
			r.chat(file, "{")
			growFile(r.t, r.chatPath(file), maxValue)
		}, modelCalls(1)},
		{"too many messages", func(r *rig) {
			var b strings.Builder
			for i := range maxMessages {
				fmt.Fprintf(&b, `{"id":"i%d","tokens":{}}`+"\n", i)
			}
			r.chat(file, b.String())
		}, modelCalls(1)},
		{"too many messages without a name in a line", func(r *rig) {
			r.chat(file, `{"$set":{"messages":[`+strings.Repeat("{},", maxMessages)+"{}]}}\n")
		}, modelCalls(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.begin("s")
			r.chat(file, chatHeader+chatLine("1", 1, "m"))
			r.readOther()
			tt.do(r)
			r.readOther()
			r.chat(file, chatLine("2", 1, "m"))
			if got := r.readOther(); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
	t.Run("too much at open", func(t *testing.T) {
		r := newRig(t)
		r.chat(file, chatHeader)
		growFile(t, r.chatPath(file), maxUnread)
		r.begin("s")
		r.chat(file, "\n"+chatLine("2", 1, "m"))
		if got := r.readOther(); got != (figure{}) {
			t.Errorf("%+v", got)
		}
	})
}

// Whatever is in the file and however it arrives, the figure never falls, is
// never negative and does not depend on the pieces; what another decoder takes
// for a stream of objects is counted as that decoder counts.
// One look takes so many directory entries, in however many directories.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxEntries + 10 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	left := maxEntries + 10
	if n := len(listDir(root, ".", 0, &left)); n != maxEntries+10 || left != 0 {
		t.Errorf("%d entries of all, %d more allowed", n, left)
	}
	left = maxEntries
	if n := len(listDir(root, ".", 0, &left)); n != maxEntries || left != 0 {
		t.Errorf("%d entries, %d more allowed", n, left)
	}
	if n := len(listDir(root, ".", 0, &left)); n != 0 {
		t.Errorf("%d entries of none", n)
	}
}

func FuzzTelemetry(f *testing.F) {
	f.Add([]byte(answerRecord(1)+answerRecord(2)), uint16(5))
	f.Add([]byte(answerRecord(1, "input_token_count", "9223372036854775807")+answerRecord(1)), uint16(100))
	f.Add([]byte(`{"a":"}{\"\\"}`+answerRecord(1)+`{`), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		if len(data) > 1<<16 {
			t.Skip()
		}
		read := func(piece int) (sum figure) {
			g := geminiGauge{session: "s"}
			for end := 0; end < len(data); {
				end = min(end+piece, len(data))
				err := g.log.scan(bytes.NewReader(data[:end]), int64(end), func(_ int64, v []byte) bool { g.record(v); return true })
				if err != nil {
					t.Fatal(err)
				}
				if up, _ := sum.raised(g.sum); sum.total() < 0 || up.usage() != g.sum.usage() {
					t.Fatalf("from %+v to %+v", sum, g.sum)
				}
				sum = g.sum
			}
			return sum
		}
		got := read(len(data) + 1)
		if pieces := read(int(piece) + 1); pieces != got {
			t.Fatalf("%+v in pieces, %+v at once", pieces, got)
		}
		g := geminiGauge{session: "s"}
		for d := json.NewDecoder(bytes.NewReader(data)); ; {
			var v json.RawMessage
			if err := d.Decode(&v); err != nil {
				if d.InputOffset() == int64(len(data)) && got != g.sum {
					t.Fatalf("%+v, want %+v", got, g.sum)
				}
				return
			}
			if v[0] != '{' {
				return
			}
			g.record(v)
		}
	})
}

// The same for the journal, whose figure may fall; what is reported may not.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(chatLine("1", 1, "m")+chatLine("2", 3, "m")+chatLine("1", 0, "m")), uint16(9))
	f.Add([]byte(`{"$set":{"messages":[`+strings.TrimSpace(chatLine("1", 1, "m"))+"]}}\n"), uint16(1))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		if len(data) > 1<<16 {
			t.Skip()
		}
		read := func(piece int) figure {
			j := journal{before: map[string]bool{}, spent: map[string]figure{}}
			s := stream{lines: true}
			var last figure
			for end := 0; end < len(data); {
				end = min(end+piece, len(data))
				err := s.scan(bytes.NewReader(data[:end]), int64(end), func(_ int64, v []byte) bool { return j.line(v, false) })
				if err != nil {
					t.Fatal(err)
				}
				next, _ := last.raised(j.figure())
				if u := next.usage(); u.Input < last.input || u.Output < last.output || u.CacheRead > u.Input || u.Total < 0 {
					t.Fatalf("from %+v to %+v", last, next)
				}
				last = next
			}
			return j.figure()
		}
		if a, b := read(len(data)+1), read(int(piece)+1); a != b {
			t.Fatalf("%+v at once, %+v in pieces", a, b)
		}
	})
}
