package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
	"github.com/sortie-ai/acp/interop/model"
)

// A row is one thing that is shown of every runtime.
type row struct {
	name, what string
	run        func(*bench)
}

func rows() []row {
	return []row{
		{"handshake", "starts, says who it is", rowHandshake},
		{"turns", "two turns in one session", rowTurns},
		{"text", "streamed text arrives whole", rowText},
		{"long", "a very long line arrives whole", rowLong},
		{"tool", "a tool call is seen as a tool result", rowTool},
		{"refuse", "a permission is refused, with the consequence", rowRefuse},
		{"cancel", "a turn is cancelled in mid text", rowCancel},
		{"error", "the model answers an error", rowError},
		{"resume", "a second process continues the session", rowResume},
		{"close", "the session is closed where that is advertised", rowClose},
		{"stop", "nothing is left after a stop in idle", rowStop},
		{"busy", "nothing is left after a stop with a command running", rowBusy},
		{"usage", "token usage is what the model reported, where the package has a source; else none is told", rowUsage},
	}
}

func TestRuntimes(t *testing.T) {
	for _, rt := range Runtimes() {
		t.Run(rt.Name, func(t *testing.T) {
			if *set == "ci" && !rt.CI {
				t.Skip("not in the smaller set")
			}
			t.Parallel()
			for _, row := range rows() {
				if rt.runs(row.name) {
					t.Run(row.name, func(t *testing.T) { runRow(t, rt, row) })
				}
			}
		})
	}
}

func runRow(t *testing.T, rt Runtime, row row) {
	defer table.time(rt.Name, row.name, t)()
	if why := rt.Facts.Not[row.name]; why != "" {
		table.skip(t, "does not apply: "+why)
	}
	row.run(newBench(t, rt))
}

func rowHandshake(b *bench) {
	r := b.start(b.rt.Asks, nil)
	info, facts := r.Info(), b.rt.Facts
	version := facts.Version
	if version == "" {
		version = Pins()[b.rt.pinName()].Version()
	}
	if version == "none" {
		version = ""
	}
	if info.AgentName != facts.Agent || info.AgentVersion != version {
		b.Errorf("it is %q %q", info.AgentName, info.AgentVersion)
	}
	if r.ID() == "" || r.PID() <= 0 {
		b.Errorf("session %q, process %d", r.ID(), r.PID())
	}
	r.stop(nil, b.rt.Facts.Escapes)
	// What is advertised decides which rows apply.
	var hello struct {
		AgentCapabilities struct {
			LoadSession         bool
			SessionCapabilities map[string]json.RawMessage
		}
	}
	answer, _ := r.wire.answer("initialize")
	b.must(json.Unmarshal(answer.Result, &hello))
	caps := hello.AgentCapabilities.SessionCapabilities
	has := func(name string) bool { return caps[name] != nil && string(caps[name]) != "null" }
	if got, want := has("close"), facts.Close; got != want {
		b.Errorf("session/close advertised: %v", got)
	}
	if got, want := hello.AgentCapabilities.LoadSession || has("resume"), facts.Not["resume"] == ""; got != want {
		b.Errorf("a continuation advertised: %v", got)
	}
}

func rowTurns(b *bench) {
	r := b.start(b.rt.Asks, nil)
	first := r.done("[[text]] remember the word walrus-5")
	second := r.done("[[text]] and now another thing")
	if first.SessionID != r.ID() || second.SessionID != r.ID() {
		b.Errorf("sessions %q and %q, not %q", first.SessionID, second.SessionID, r.ID())
	}
	if last := b.lastAsked(); !b.rt.Facts.NoModel && !strings.Contains(last.Body, "walrus-5") {
		b.Errorf("the second turn's request does not hold the first turn")
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// lastAsked returns the newest request that is no side task.
func (b *bench) lastAsked() model.Request {
	var last model.Request
	for _, r := range b.model.Requests() {
		if !r.Side {
			last = r
		}
	}
	return last
}

// learnt reports that the model was told what a tool said. The newest request
// need not be the one: some runtimes ask for a suggestion behind the turn.
func (b *bench) learnt(said string) bool {
	return slices.ContainsFunc(b.model.Requests(), func(r model.Request) bool {
		return r.AfterTool && strings.Contains(r.Body, said)
	})
}

// banner runs a turn that takes the runtime's banner with it, if it has one.
func (r *run) banner() {
	if r.b.rt.Facts.Banner {
		r.done("[[text]] hello")
	}
}

func rowText(b *bench) {
	r := b.start(b.rt.Asks, nil)
	r.banner()
	tn := r.done("[[text]] hello")
	if tn.text != b.says() {
		b.Errorf("text %q", tn.text)
	}
	if !strings.HasSuffix(b.says(), tn.message()) || tn.message() == "" {
		b.Errorf("message %q", tn.message())
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

func rowLong(b *bench) {
	r := b.start(b.rt.Asks, nil)
	r.banner()
	tn := r.done("[[big]] please")
	if tn.text != strings.Repeat("B", model.BigLength) {
		b.Errorf("%d characters: %.80q...", len(tn.text), tn.text)
	}
	if m := []rune(tn.message()); len(m) != 501 {
		b.Errorf("a message of %d runes", len(m))
	}
	longest := func() (n int) {
		for _, l := range r.wire.lines() {
			if l.Dir == "recv" {
				n = max(n, len(l.Line))
			}
		}
		return n
	}
	for range 200 { // it may come behind the turn
		if longest() >= b.rt.Facts.LongLine {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.stop(nil, b.rt.Facts.Escapes)
	if n := longest(); n < b.rt.Facts.LongLine {
		b.Errorf("the longest line has %d bytes", n)
	}
}

func rowTool(b *bench) {
	r := b.start(b.rt.Free, nil)
	tn := r.done("[[shell expr 2000 + 262]] please")
	kind := b.rt.Facts.Tool
	if kind == "" {
		kind = "execute"
	}
	results := tn.of(acp.ToolResult)
	if len(results) != 1 || results[0].ToolName != kind || results[0].ToolError || results[0].ToolDuration < 0 {
		b.Errorf("tool results: %+v", results)
	}
	if !b.rt.Facts.NoModel && !b.learnt("2262") {
		b.Errorf("the model did not learn what the tool said")
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

func rowRefuse(b *bench) {
	r := b.start(b.rt.Asks, nil)
	tn := r.turn(b.ctx, "[[ask touch refused.txt]] please", nil)
	if tn.Refused != 1 {
		b.Errorf("%d permission requests refused", tn.Refused)
	}
	if _, err := os.Stat(filepath.Join(b.workspace, "refused.txt")); !errors.Is(err, os.ErrNotExist) {
		b.Errorf("the refused command ran: %v", err)
	}
	told := slices.ContainsFunc(tn.of(acp.Notification), func(e acp.Event) bool {
		return e.Message == "refused a permission request because this run is unattended and no one can approve it"
	})
	if !told {
		b.Errorf("no notification of the refusal")
	}
	b.outcome(tn, b.rt.Facts.Refused)
	if b.rt.Facts.NoModel && tn.text != b.says() {
		b.Errorf("the refused turn says %q", tn.text)
	}
	if !b.rt.Facts.NoModel {
		if again := b.lastAsked().AfterTool; again == b.rt.Facts.Resigned {
			b.Errorf("the model was asked again: %v", again)
		}
		if next := r.done("[[text]] go on"); next.text != b.says() {
			b.Errorf("the next turn says %q", next.text)
		}
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// outcome compares how a turn ended.
func (b *bench) outcome(tn turn, want Outcome) {
	b.Helper()
	kind, text := "", ""
	if tn.err != nil {
		kind, text = string(tn.err.Kind), tn.err.Error()
	}
	if string(tn.ExitReason) != want.Reason || kind != want.Kind || !strings.Contains(text, want.Text) {
		b.Errorf("the turn ended %s, %q; expected %+v", tn.ExitReason, text, want)
	}
}

func rowCancel(b *bench) {
	r := b.start(b.rt.Asks, nil)
	ctx, cancel := context.WithCancelCause(b.ctx)
	defer cancel(nil)
	why := errors.New("enough")
	var began time.Time
	stop := func() {
		if began.IsZero() {
			began = time.Now()
			cancel(why)
		}
	}
	if b.rt.Facts.Buffers {
		go func() { // ends with the turn's request or the row
			_, err := b.model.Await(b.ctx, func(q model.Request) bool { return strings.Contains(q.Prompt, "slow") })
			if err == nil {
				cancel(why)
			}
		}()
		began = time.Now()
	}
	tn := r.turn(ctx, "[[slow]] please", func(e acp.Event) {
		if strings.TrimSpace(e.Text) != "" {
			stop()
		}
	})
	took := time.Since(began)
	if tn.ExitReason != acp.TurnCancelled || tn.StopReason != "cancelled" || !errors.Is(tn.err, why) {
		b.Errorf("%s, stop reason %q, %v", tn.ExitReason, tn.StopReason, tn.err)
	}
	if took > cancelBound {
		b.Errorf("it took %v", took)
	}
	b.Logf("cancelled after %v", took)
	r.next()
	r.stop(nil, b.rt.Facts.Escapes)
}

// next runs the turn behind one that was cancelled or failed.
func (r *run) next() {
	b := r.b
	b.Helper()
	tn, want := r.done("[[text]] go on"), b.says()
	if b.rt.Facts.Hasty {
		if tn.text != "" {
			b.Errorf("the next turn is said to be answered ahead of its text, and says %q", tn.text)
		}
		tn, want = r.done("[[text]] go on"), want+want
	}
	if tn.text != want {
		b.Errorf("the next turn says %q", tn.text)
	}
}

func rowError(b *bench) {
	r := b.start(b.rt.Asks, nil)
	tn := r.turn(b.ctx, "[[http 400]] please", nil)
	b.outcome(tn, b.rt.Facts.Broken)
	r.next()
	r.stop(nil, b.rt.Facts.Escapes)
}

func rowResume(b *bench) {
	first := b.start(b.rt.Asks, nil)
	first.done("[[text]] remember the word walrus-6")
	first.stop(nil, b.rt.Facts.Escapes)
	second := b.start(b.rt.Asks, func(c *acp.Config) { c.Resume = first.ID() })
	info := second.Info()
	b.Logf("continuation: %s", info.Continuation)
	if !info.Resumed || !info.SessionContinuation || second.ID() != first.ID() {
		b.Errorf("resumed %v as %s: %s", info.Resumed, second.ID(), info.Continuation)
	}
	tn := second.done("[[text]] go on")
	if tn.text != b.says() {
		b.Errorf("the resumed turn says %q", tn.text)
	}
	second.checkUsage(tn) // without what the first process spent
	if !strings.Contains(b.lastAsked().Body, "walrus-6") {
		b.Errorf("the model was not told the earlier conversation")
	}
	second.stop(nil, b.rt.Facts.Escapes)
}

func rowClose(b *bench) {
	r := b.start(b.rt.Asks, nil)
	r.done("[[text]] hello")
	r.stop(nil, b.rt.Facts.Escapes)
	answer, answered := r.wire.answer("session/close")
	if answered != b.rt.Facts.Close || answer.Error != nil {
		b.Errorf("session/close answered: %v, error %s", answered, answer.Error)
	}
}

func rowStop(b *bench) {
	r := b.start(b.rt.Asks, nil)
	r.done("[[text]] hello")
	if len(b.left()) == 0 {
		b.Fatal("the mark is in no environment, so that nothing can be found by it")
	}
	r.stop(b.rt.Facts.Escapes, nil)
}

func rowBusy(b *bench) {
	const command = `process.on('SIGTERM',Date);setTimeout(Date,600123)` // only a kill ends it
	r := b.start(b.rt.Free, nil)
	over := make(chan turn, 1)
	go func() { over <- r.turn(b.ctx, fmt.Sprintf(`[[shell node -e "%s"]] please`, command), nil) }()
	running := func() bool {
		return slices.ContainsFunc(b.left(), func(p proc) bool {
			return strings.HasPrefix(p.command, "node ") && strings.HasSuffix(p.command, command) && p.catches(syscall.SIGTERM)
		})
	}
	for !running() {
		select {
		case tn := <-over:
			b.Fatalf("the turn ended %s, %v before the command ran: %q", tn.ExitReason, tn.err, tn.text)
		case <-b.ctx.Done():
			b.Fatalf("the command never ran; there are %v", b.left())
		case <-time.After(50 * time.Millisecond):
		}
	}
	r.stop(b.rt.Facts.EscapesBusy, b.rt.Facts.MayEscapeBusy)
	if tn := <-over; tn.ExitReason != acp.TurnCancelled {
		b.Errorf("the turn ended %s, %v", tn.ExitReason, tn.err)
	}
}
