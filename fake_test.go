package acp_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
)

// TestFriendly drives the fake runtime as it is without a scenario: with its
// surprises, which must change nothing, and without.
func TestFriendly(t *testing.T) {
	together(t)
	tests := []struct {
		prompt     string
		exit       acp.EventType
		stopReason string
		text       string
		tool       string // name of the tool that was reported; a cancelled turn may come so far
		failed     bool   // it failed
		refused    int
	}{
		{"hello", acp.TurnCompleted, "end_turn", `You said "hello".`, "read", false, 0},
		{"permission please", acp.TurnCompleted, "end_turn", "You did not let me look around.", "read", true, 1},
		{"ask me", acp.TurnInputRequired, "", `You said "ask me".`, "", false, 0},
		{"long 40", acp.TurnCompleted, "end_turn", strings.Repeat("word ", 40), "", false, 0},
		{"slow", acp.TurnCancelled, "cancelled", "slowly ", "", false, 0},
		{"refuse", acp.TurnFailed, "refusal", "", "", false, 0},
		{"fail", acp.TurnFailed, "", "", "", false, 0},
		{"crash", acp.TurnFailed, "", "This goes ", "", false, 0},
	}
	for _, args := range [][]string{nil, {"-plain"}} {
		s := newFake(t, args...).mustStart()
		for _, test := range tests {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			var text, tool string
			var failed bool
			res, _ := s.RunTurn(ctx, test.prompt, func(e acp.Event) {
				text += e.Text
				if test.prompt == "slow" && e.Text != "" {
					cancel()
				}
				if e.Type == acp.ToolResult {
					tool, failed = e.ToolName, e.ToolError
				}
			})
			cancel()
			late := test.exit == acp.TurnInputRequired // its cancel may be, and the runtime go on
			if res.ExitReason != test.exit || !late && res.StopReason != test.stopReason || res.Refused != test.refused ||
				!strings.HasPrefix(strings.Replace(text, "You said \"permission please\". ", "", 1), test.text) ||
				!late && tool != test.tool || failed != test.failed {
				t.Errorf("%q %q: %+v, text %q, tool %q %v", args, test.prompt, res, text, tool, failed)
			}
		}
		<-s.Done() // it crashed
	}
}

// A session of an earlier process is continued, and what was said in it comes
// ahead of the first turn.
func TestFriendlyResume(t *testing.T) {
	together(t)
	f := newFake(t)
	f.Resume = "earlier"
	s := f.mustStart()
	if info := s.Info(); !info.Resumed || s.ID() != "earlier" || info.AgentName != "fake-agent" {
		t.Errorf("%q, %+v", s.ID(), info)
	}
	var said []string
	if _, err := s.RunTurn(context.Background(), "long 1", func(e acp.Event) {
		if e.Type == acp.Notification && e.Message != "" {
			said = append(said, e.Message)
		}
	}); err != nil {
		t.Error(err)
	}
	if got := strings.Join(said, "|"); !strings.HasSuffix(got, "We said hello.|word ") {
		t.Errorf("said %q", got)
	}
}

// TestTranscripts is TestGolden with real processes, but for what takes long in
// them: silence that has to be certain, and figures that Gemini owes.
func TestTranscripts(t *testing.T) {
	together(t)
	for _, r := range acp.Recordings(t) {
		if r.Cancels || strings.HasPrefix(r.Name, "gemini") {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			file, err := filepath.Abs(filepath.Join("testdata", "transcripts", r.Name+".jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			f := newFake(t, "-replay", file)
			f.Resume = r.Resume
			r.Golden(t, r.Tell(f.mustStart(), time.Minute, func() {}))
		})
	}
}

// A wrapper dies of the graceful signal at once; what the runtime behind it has
// to put away is put away all the same (SPEC 10.5).
func TestWrapper(t *testing.T) {
	together(t)
	marker := filepath.Join(t.TempDir(), "marker")
	f := steps(t, `{"on_term_ms":400,"path":"`+filepath.ToSlash(marker)+`"},{"answer_all":true}`, "-wrap")
	s, err := f.start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunTurn(context.Background(), "hello", nil); err != nil {
		t.Error(err)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Error(err)
	}
}
