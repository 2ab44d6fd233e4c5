package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sortie-ai/acp"
	"github.com/sortie-ai/acp/interop/model"
)

// spent is what the model has answered to this run so far. An answer that was
// cut short named no figures.
func (r *run) spent() acp.Usage {
	var n int64
	for _, q := range r.b.model.Requests()[r.asked:] {
		if !q.Gone {
			n++
		}
	}
	u := acp.Usage{Input: n * model.InputTokens, Output: n * (model.OutputTokens + model.ThoughtTokens), CacheRead: n * model.CachedTokens}
	u.Total = u.Input + u.Output
	return u
}

// checkUsage checks the figures of a turn that is over: exact where they are
// measured, and none elsewhere.
func (r *run) checkUsage(tn turn) {
	b, exact, want := r.b, r.b.rt.Facts.Exact, acp.Usage{}
	b.Helper()
	if exact {
		want = r.spent()
	}
	if tn.Usage != want || tn.Measured != exact || tn.Unaccounted == exact {
		b.Errorf("%+v, measured %v, unaccounted %v; want %+v", tn.Usage, tn.Measured, tn.Unaccounted, want)
	}
	events := tn.of(acp.TokenUsage)
	if (len(events) == 1) != exact || len(events) > 1 || exact && events[0].Usage != want {
		b.Errorf("token usage events: %+v; want %+v", events, want)
	}
	if info := r.Info(); info.TokenCounts != exact {
		b.Errorf("token counts delivered: %v, source %q", info.TokenCounts, info.Source)
	}
}

func rowUsage(b *bench) {
	r := b.start(b.rt.Free, nil)
	for _, prompt := range []string{"[[text]] hello", "[[shell expr 1 + 1]] please", "[[think]] more"} {
		r.checkUsage(r.done(prompt))
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// A usageRow has a runtime that is measured in less friendly surroundings.
type usageRow struct {
	name, what string
	ci         bool // belongs to the smaller set, for one runtime
	run        func(*bench)
}

func usageRows(rt Runtime) []usageRow {
	all := []usageRow{
		{"cancelled", "usage: a cancelled turn between two", true, cancelled},
		{"wrapped", "usage: behind a script of another name", true, wrapped},
		{"long", "usage: an answer longer than the tick", false, long},
		{"impatient", "usage: read timeout below the tick", false, impatient},
	}
	if rt.Only != nil { // the others have it among their rows
		return append(all, usageRow{"resumed", "usage: without what came before a resume", false, rowResume})
	}
	// A router's calls are in the telemetry alone.
	return append(all, usageRow{"journal", "usage: telemetry switched off, from the journal", false, journal})
}

func TestUsage(t *testing.T) {
	ci := *set == "ci"
	for _, rt := range Runtimes() {
		if !rt.Facts.Exact || ci && rt.Name != "gemini" {
			continue
		}
		t.Run(rt.Name, func(t *testing.T) {
			t.Parallel()
			for _, row := range usageRows(rt) {
				if ci && !row.ci {
					continue
				}
				t.Run(row.name, func(t *testing.T) {
					defer table.time(rt.Name, row.what, t)()
					row.run(newBench(t, rt))
				})
			}
		})
	}
	t.Run("stranger", func(t *testing.T) {
		t.Parallel()
		for _, rt := range Runtimes() {
			if rt.Name == "qwen" { // it began as Gemini CLI
				defer table.time(rt.Name, "usage: none under the name gemini", t)()
				stranger(newBench(t, rt))
			}
		}
	})
}

// wrap writes a script in front of the runtime's command.
func (b *bench) wrap(c *acp.Config, name, first string) {
	b.Helper()
	script := filepath.Join(b.home, name)
	b.must(os.WriteFile(script, []byte("#!/bin/sh\n"+first+"\nexec '"+c.Argv[0]+"' \"$@\"\n"), 0o700))
	c.Argv = append([]string{script}, c.Argv[1:]...)
}

// cancelled cuts the second of three answers.
func cancelled(b *bench) {
	r := b.start(b.rt.Asks, nil)
	r.checkUsage(r.done("[[text]] hello"))
	before := r.spent()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	cut := r.turn(ctx, "[[slow]] please", func(e acp.Event) {
		if e.Text != "" {
			cancel()
		}
	})
	if cut.ExitReason != acp.TurnCancelled || cut.Usage.Total < before.Total || !cut.Unaccounted {
		b.Errorf("%+v, %v; before %+v", cut.Result, cut.err, before)
	}
	b.Logf("the cancelled turn: %+v", cut.Usage)
	r.checkUsage(r.done("[[text]] go on"))
	r.stop(nil, b.rt.Facts.Escapes)
}

// long has answers in whose middle a batch of telemetry is written: what is in it
// of a router must not pass for the answer.
func long(b *bench) {
	r := b.start(b.rt.Asks, nil)
	for range 2 {
		r.checkUsage(r.done("[[slow 28]] please"))
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// impatient waits less than the telemetry takes: a turn has either the exact
// figure of all so far or none, and after one without the next may have it.
func impatient(b *bench) {
	const patience, turns = 2 * time.Second, 20
	r := b.start(b.rt.Asks, func(c *acp.Config) { c.ReadTimeout = patience })
	measured, missed := false, false
	for range turns {
		tn := r.done("[[text]] hello")
		if len(tn.of(acp.TokenUsage)) == 0 {
			if !tn.Unaccounted || tn.Measured != measured || !r.Info().TokenCounts {
				b.Errorf("a turn without a figure: %+v", tn.Result)
			}
			missed = true
			continue
		}
		r.checkUsage(tn)
		if measured = true; missed {
			break
		}
	}
	if !measured || !missed {
		b.Errorf("in %d turns a figure came: %v, and was missed: %v", turns, measured, missed)
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// relaunches counts the records of a second start.
func (r *run) relaunches(text string) int {
	n := 0
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "agent relaunched") {
			n++
			if !strings.Contains(line, "level=INFO") || !strings.Contains(line, text) {
				r.b.Errorf("log: %s", line)
			}
		}
	}
	return n
}

// wrapped has a command that does not name the runtime.
func wrapped(b *bench) {
	r := b.start(b.rt.Free, func(c *acp.Config) { b.wrap(c, "agent", "") })
	if n := r.relaunches("agent.command does not name the runtime it starts"); n != 1 {
		b.Errorf("%d relaunches", n)
	}
	r.checkUsage(r.done("[[shell expr 1 + 1]] please"))
	r.stop(nil, b.rt.Facts.Escapes)
}

// journal has a runtime that writes no telemetry.
func journal(b *bench) {
	r := b.start(b.rt.Free, func(c *acp.Config) { b.wrap(c, "gemini", "unset GEMINI_TELEMETRY_ENABLED GEMINI_TELEMETRY_OUTFILE") })
	for _, prompt := range []string{"[[text]] hello", "[[shell expr 1 + 1]] please"} {
		r.checkUsage(r.done(prompt))
	}
	if n := r.relaunches(""); n != 0 {
		b.Errorf("%d relaunches", n)
	}
	r.stop(nil, b.rt.Facts.Escapes)
}

// stranger is another runtime under the name of one that is measured.
func stranger(b *bench) {
	r := b.start(b.rt.Free, func(c *acp.Config) { b.wrap(c, "gemini", "") })
	if n := r.relaunches("agent relaunched without usage settings meant for another runtime"); n != 1 {
		b.Errorf("%d relaunches", n)
	}
	r.checkUsage(r.done("[[text]] hello"))
	for _, p := range b.left() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if strings.Contains(string(env), "GEMINI_TELEMETRY") {
			b.Errorf("%s has the settings of the measurement", p.command)
		}
	}
	r.stop(nil, b.rt.Facts.Escapes)
}
