package script

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// record is one line of a transcript.
type record struct {
	Dir, Line, B64 string

	fromClient  bool
	fromRuntime bool
	raw         []byte
	msg         message // zero when the line is no message
}

func loadTranscript(name string) (Transcript, error) {
	b, err := os.ReadFile(name) // #nosec G304 -- the command line names the file
	if err != nil {
		return nil, err
	}
	t, err := ParseTranscript(b)
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return t, nil
}

// A Transcript is a recorded session.
type Transcript []record

// ParseTranscript reads what Config.Record of the client's package wrote.
func ParseTranscript(b []byte) (Transcript, error) {
	var records Transcript
	for n, line := range bytes.Split(b, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		if err := r.prepare(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		records = append(records, r)
	}
	return records, nil
}

func (r *record) prepare() error {
	r.fromClient = r.Dir == "send" || r.Dir == "client->agent"
	r.fromRuntime = r.Dir == "recv" || r.Dir == "agent->client"
	r.raw = []byte(r.Line)
	if r.B64 != "" {
		var err error
		if r.raw, err = base64.StdEncoding.DecodeString(r.B64); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(r.raw, &r.msg); err != nil {
		r.msg = message{} // a banner, or a line cut short: sent as it stands
	}
	return nil
}

// request reports whether the client asks here.
func (r *record) request() bool {
	return r.fromClient && r.msg.Method != "" && len(r.msg.ID) > 0
}

// Replay plays the runtime's side of the transcript and returns its exit
// status, with the methods of what the client said that the recording lacks. As
// with Main, a goroutine may still be reading stdin.
func (t Transcript) Replay(stdin io.ReadCloser, stdout, stderr io.WriteCloser) (status int, extra []string) {
	r := newReplay(&wire{in: newInbox(stdin), out: stdout, err: stderr}, t)
	status = r.run()
	return status, r.extra
}

// replay plays the runtime's side of a transcript. What the client sent then it
// must send again, by method; its ids and its pace are its own. A recorded
// message that it leaves out is left out with its answer; one that the recording
// lacks is answered -32601 (session/close and session/delete: {}).
type replay struct {
	*wire
	records []record
	at      int
	ids     map[string][]byte // the client's id now, by its id then
	skipped map[string]bool   // ids then of requests that the client has left out
	extra   []string          // methods that the recording lacks
}

func newReplay(w *wire, records []record) *replay {
	return &replay{wire: w, records: records, ids: make(map[string][]byte), skipped: make(map[string]bool)}
}

func (r *replay) run() int {
	for {
		if err := r.advance(len(r.records)); err != nil {
			return r.status(err)
		}
		m, err := r.in.next(0, anyMessage)
		if err != nil {
			return r.status(err)
		}
		if err := r.take(m); err != nil {
			return r.status(err)
		}
	}
}

// advance plays on to the next line of the client, or to the record end.
func (r *replay) advance(end int) error {
	for ; r.at < end && !r.records[r.at].fromClient; r.at++ {
		rec := &r.records[r.at]
		switch {
		case rec.Dir == "stderr":
			complain(r.err, "%s", rec.raw)
		case rec.Dir == "note" && rec.exits():
			return rec.exitStatus()
		case !rec.fromRuntime:
		default:
			if err := r.play(rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// play sends one line of the runtime; an answer goes to the id of now.
func (r *replay) play(rec *record) error {
	line := rec.raw
	if id := rec.msg.ID; rec.msg.reply() {
		if r.skipped[string(id)] {
			return nil
		}
		if now, ok := r.ids[string(id)]; ok {
			line = replaceID(line, now)
		}
	}
	return r.write(append(line[:len(line):len(line)], '\n'))
}

// take finds the record that the client's message repeats, and plays what
// stands before it.
func (r *replay) take(m *message) error {
	same := func(rec record) bool {
		return rec.fromClient && rec.msg.Method == m.Method && (!m.reply() || bytes.Equal(rec.msg.ID, m.ID))
	}
	found := slices.IndexFunc(r.records[r.at:], same)
	if found < 0 {
		answer := noSuchMethod
		switch m.Method {
		case "":
			return nil
		case "session/close", "session/delete":
			answer = `"result":{}`
		default:
			r.extra = append(r.extra, m.Method)
		}
		if len(m.ID) == 0 {
			return nil
		}
		return r.reply(m.ID, answer)
	}
	for end := r.at + found; r.at < end; {
		if rec := &r.records[r.at]; rec.fromClient {
			if rec.request() {
				r.skipped[string(rec.msg.ID)] = true
			}
			r.at++
			continue
		}
		if err := r.advance(end); err != nil {
			return err
		}
	}
	if rec := &r.records[r.at]; rec.request() {
		r.ids[string(rec.msg.ID)] = m.ID
	}
	r.at++
	return nil
}

// exits reports whether a note says that the runtime exited here by itself.
func (r *record) exits() bool {
	return strings.HasPrefix(r.Line, "exit status ") || strings.HasPrefix(r.Line, "signal: ")
}

// exitStatus is the one that a line names, 1 for a signal.
func (r *record) exitStatus() exitStatus {
	if n, err := strconv.Atoi(strings.TrimPrefix(r.Line, "exit status ")); err == nil {
		return exitStatus(n)
	}
	return 1
}

// status is the recorded exit status once the client is gone, as long as the
// recording was played to its end.
func (r *replay) status(err error) int {
	var exit exitStatus
	if errors.As(err, &exit) {
		return int(exit)
	}
	if !errors.Is(err, errGone) {
		complain(r.err, "fakeagent: replay: %v", err)
		return statusFailed
	}
	if slices.ContainsFunc(r.records[r.at:], func(rec record) bool { return rec.fromRuntime }) {
		complain(r.err, "fakeagent: replay: the client went away at record %d of %d", r.at+1, len(r.records))
		return statusGone
	}
	for _, rec := range r.records {
		if rec.Dir == "exit" {
			return int(rec.exitStatus())
		}
	}
	return 0
}

// replaceID replaces the value of the member id of a JSON object, and nothing
// else of the line.
func replaceID(line, id []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return line
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return line
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return line
		}
		if key == "id" {
			end := d.InputOffset()
			start := end - int64(len(value))
			return slices.Concat(line[:start], id, line[end:])
		}
	}
	return line
}
