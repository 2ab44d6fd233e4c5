package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sortie-ai/acp/fakeagent/script"
)

// A Recording is what a real runtime once said, with what must come of it. The
// second is a file of testdata/golden, which ACP_GOLDEN=update writes anew:
//
//	ACP_GOLDEN=update go test -run TestGolden .
type Recording struct {
	Name    string
	Turns   int
	Resume  string // the session that was continued
	Cancels bool   // a turn was cancelled
	script  script.Transcript
	lines   []recordedLine // of it
	want    string         // what came of it; a turn that tells another story is the last
}

// Recordings reads testdata/transcripts.
func Recordings(t *testing.T) []Recording {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "transcripts", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all []Recording
	for _, file := range files {
		b, err := os.ReadFile(file) // #nosec G304 -- of testdata
		if err != nil {
			t.Fatal(err)
		}
		r := Recording{Name: strings.TrimSuffix(filepath.Base(file), ".jsonl")}
		if r.script, err = script.ParseTranscript(b); err != nil {
			t.Fatal(file, err)
		}
		for line := range bytes.Lines(b) {
			l := readLine(t, line)
			r.lines = append(r.lines, l)
			switch l.Method {
			case "session/prompt":
				r.Turns++
			case "session/load", "session/resume":
				r.Resume = l.Params.SessionID
			case "session/cancel":
				r.Cancels = true
			}
		}
		all = append(all, r)
	}
	return all
}

// Golden compares what came of a recording with its file.
func (r Recording) Golden(t *testing.T, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", r.Name+".jsonl")
	if os.Getenv("ACP_GOLDEN") == "update" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file) // #nosec G304 -- of testdata
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(b), "\n")
	for i, want := range wantLines {
		if i == len(gotLines) || gotLines[i] != want {
			t.Fatalf("%s line %d\n got  %s\n want %s", file, i+1, strings.Join(gotLines[i:min(i+1, len(gotLines))], ""), want)
		}
	}
	if len(gotLines) > len(wantLines) {
		t.Fatalf("%s has no line %s", file, gotLines[len(wantLines)])
	}
}

// goldenEvent is an Event without what differs from run to run.
type goldenEvent struct {
	Type      EventType
	Message   string `json:",omitempty"`
	Text      string `json:",omitempty"`
	ToolName  string `json:",omitempty"`
	ToolError bool   `json:",omitempty"`
	Usage     Usage  `json:",omitzero"`
	Model     string `json:",omitempty"`
}

// Tell runs the recording's turns in a session and writes down what comes of
// them. settled returns when the runtime has said all it has to say; a turn in
// which nothing comes for the silence is cancelled.
func (r Recording) Tell(s *Session, silence time.Duration, settled func()) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	put := func(v any) {
		if err := enc.Encode(v); err != nil {
			b.WriteString(err.Error())
		}
	}
	for range r.Turns {
		settled() // what came behind the last answer came between the turns
		ctx, cancel := context.WithCancelCause(context.Background())
		silent := time.AfterFunc(silence, func() { cancel(errSilence) })
		res, err := s.RunTurn(ctx, "go on", func(e Event) {
			silent.Reset(silence)
			put(goldenEvent{e.Type, e.Message, e.Text, e.ToolName, e.ToolError, e.Usage, e.Model})
		})
		silent.Stop()
		cancel(nil)
		said := ""
		if err != nil {
			said = err.Error()
		}
		put(struct {
			Result
			Error string
		}{res, said})
		if !strings.HasPrefix(r.want, b.String()) && r.want != "" {
			return b.String()
		}
	}
	settled()
	put(s.Info())
	return b.String()
}

var errSilence = errors.New("silence")

// replay plays what a runtime said to a session in a bubble, where no wait
// takes any time, and returns what came of them, with what the session said that
// the transcript lacks.
func (r Recording) replay(t *testing.T, dir string, said script.Transcript) (told string, extra []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, planErr := plan(Config{Workspace: dir, Argv: []string{os.Args[0]}, Env: []string{}, Resume: r.Resume, ChunkText: true})
		if planErr != nil {
			t.Fatal(planErr)
		}
		c.spawn = player(said, &extra)
		a := &Adapter{}
		s, failure := a.settleSource(t.Context(), c)
		if failure == nil {
			failure = s.create(t.Context())
		}
		if failure != nil {
			told = failure.Error()
			return
		}
		told = r.Tell(s, time.Minute, synctest.Wait)
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return told, extra
}

// workplace returns a new workspace.
func workplace(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// player starts runtimes in memory that play the transcript. Once one has
// exited, extra is what it was told that the transcript lacks.
func player(said script.Transcript, extra *[]string) func(context.Context, []string, string, []string, *slog.Logger) (*process, *Error) {
	return func(context.Context, []string, string, []string, *slog.Logger) (*process, *Error) {
		stdin, stdout, stderr := newPipe(pipeRoom), newPipe(noLimit), newPipe(noLimit)
		exited, mayReap, reaped := make(chan struct{}), make(chan struct{}), make(chan exitStatus, 1)
		in := &end{pipe: stdin, own: &stdin.noReader}
		hangUp := func(bool) error {
			stdin.set(func() { stdin.noReader = true })
			return nil
		}
		go func() { // ends with either end of standard input, and the leave to reap
			_, *extra = said.Replay(in, &end{pipe: stdout, own: &stdout.noWriter}, &end{pipe: stderr, own: &stderr.noWriter})
			_ = hangUp(true)
			for _, p := range []*pipe{stdout, stderr} {
				p.set(func() { p.noWriter = true })
			}
			close(exited)
			<-mayReap
			reaped <- exitStatus{"exit status 0", 0}
		}()
		return &process{
			pid:    4711,
			stdin:  &end{pipe: stdin, own: &stdin.noWriter},
			stdout: &end{pipe: stdout, own: &stdout.noReader},
			stderr: &end{pipe: stderr, own: &stderr.noReader},
			signal: hangUp, exited: exited, mayReap: mayReap, reaped: reaped,
		}, nil
	}
}

// recordedLine is a line of a transcript and the message in it.
type recordedLine struct {
	Dir, Line string `json:"-"`

	ID     json.RawMessage
	Method string
	Params struct {
		SessionID string
		Update    struct{ SessionUpdate, Status string }
	}
}

func readLine(t *testing.T, line []byte) recordedLine {
	t.Helper()
	var entry struct{ Dir, Line string }
	if err := json.Unmarshal(line, &entry); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	l := recordedLine{Dir: entry.Dir, Line: entry.Line}
	_ = json.Unmarshal([]byte(entry.Line), &l) // a line that is no message has no method
	return l
}

func (l recordedLine) sent() bool     { return l.Dir == "send" || l.Dir == "client->agent" }
func (l recordedLine) received() bool { return l.Dir == "recv" || l.Dir == "agent->client" }

// TestGolden: what real runtimes once said gives what it gave.
func TestGolden(t *testing.T) {
	for _, r := range Recordings(t) {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			told, extra := r.replay(t, workplace(t), r.script)
			r.Golden(t, told)
			if extra != nil {
				t.Errorf("the recording lacks %q", extra)
			}
		})
	}
}

// TestGoldenLosesNothing leaves out one line of each recording after the other:
// the comparison must fail, unless the line has no consequence.
func TestGoldenLosesNothing(t *testing.T) {
	for _, r := range Recordings(t) {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			dir, ours := workplace(t), answered{}
			r.want, _ = r.replay(t, dir, r.script)
			for i, l := range r.lines {
				want := ours.weigh(l)
				told, extra := r.replay(t, dir, slices.Delete(slices.Clone(r.script), i, i+1))
				lost := told != r.want || extra != nil
				if want == shows && !lost || want == silent && lost {
					t.Errorf("%s without line %d: a difference: %v\n%s %.300s", r.Name, i+1, lost, l.Dir, l.Line)
				}
			}
		})
	}
}

// weight is what it means that a line is missing.
type weight int

const (
	shows  weight = iota // another outcome
	may                  // another outcome, or what it said is said again
	silent               // nothing
)

// answered are the ids of the requests of the recorded client that this one
// makes too.
type answered map[string]bool

// weigh obeys these rules. Nothing comes of an answer to what this client does
// not ask, of a notification of the runtime's own, of an update that has no
// event, of standard error, notes and the exit. What may show: the progress of a
// tool call, if the end of the call does not say it again; what the user said,
// if it parts two messages; and an answer that was sent, if the replay waits for
// it.
func (ours answered) weigh(l recordedLine) weight {
	id := string(l.ID)
	switch {
	case l.sent():
		switch l.Method {
		case controlMethod, "initialize", "session/new", "session/load", "session/resume", "session/prompt":
			ours[id] = true
			return shows
		case "session/cancel":
			return shows
		}
		return may
	case !l.received(), l.Method == "" && id != "" && !ours[id]:
		return silent
	case l.Method != "session/update":
		if id == "" && l.Method != "" {
			return silent
		}
		return shows
	}
	switch u := l.Params.Update; u.SessionUpdate {
	case "available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update":
		return silent
	case "user_message_chunk":
		return may
	case "tool_call", "tool_call_update":
		if u.Status != "completed" && u.Status != "failed" {
			return may
		}
	}
	return shows
}
