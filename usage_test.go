package acp

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSourceFor(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    bool
	}{
		{"gemini --acp", true},
		{"/usr/local/bin/gemini", true},
		{"gemini-cli", true},
		{"npx -y @google/gemini-cli@0.61.0 --acp", true},
		{"npx @google/gemini-cli", true},
		{"node /opt/x/gemini.js --acp", true},
		{"node gemini.mjs", true},
		{"node gemini.cjs", true},
		{`C:\bin\gemini.cmd --acp`, true},
		{"gemini.exe", true},
		{"gemini.bat", true},
		{"gemini.ps1", true},
		{"sh -c gemini", true},
		{"gemini@latest", true},
		{"mygemini", false},
		{"gemini-proxy", false},
		{"gemini.sh", false},
		{"gemini.js.js", false},
		{"@gemini", false},
		{"/opt/gemini/run", false},
		{"qwen --acp", false},
		{"", false},
	} {
		src := sourceFor(strings.Fields(tt.command))
		if (src != nil) != tt.want {
			t.Errorf("%q: claimed %v, want %v", tt.command, src != nil, tt.want)
		}
		if tt.want && src != sourceNamed("gemini-cli") {
			t.Errorf("%q: claimed by another source than the handshake's", tt.command)
		}
	}
	for _, name := range []string{"", "gemini", "Gemini-CLI", "qwen-code"} {
		if sourceNamed(name) != nil {
			t.Errorf("a source reads %q", name)
		}
	}
}

func TestQuotaBound(t *testing.T) {
	for _, tt := range []struct {
		result string
		want   int64
	}{
		{`{"stopReason":"end_turn","_meta":{"quota":{"token_count":{"input_tokens":1111,"output_tokens":222}}}}`, 1333},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":5}}}}`, 5},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":-5,"output_tokens":2}}}}`, 2},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":"7","output_tokens":2}}}}`, 2},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":9223372036854775807,"output_tokens":9223372036854775807}}}}`, mostTokens},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":1e40}}}}`, 0},
		{`{"_meta":{"quota":{"token_count":{"input_tokens":0,"output_tokens":0}}}}`, 0},
		{`{"_meta":{"quota":null}}`, 0},
		{`{"_meta":[1]}`, 0},
		{`{"stopReason":"end_turn"}`, 0},
		{`null`, 0},
		{``, 0},
	} {
		if got := quotaBound([]byte(tt.result)); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.result, got, tt.want)
		}
	}
}

func TestFigureNeverOverflows(t *testing.T) {
	var f figure
	for range 5 {
		f.add(math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64)
	}
	if u := f.usage(); u.Input <= 0 || u.Output <= 0 || u.Total != u.Input+u.Output || u.Total < u.Input || u.CacheRead > u.Input {
		t.Errorf("usage %+v", u)
	}
	f = figure{}
	f.add(10, 1, 0, 99)
	if f.cached != 10 {
		t.Errorf("%d tokens of 10 were cached", f.cached)
	}
}

// A fakeGauge knows more as time goes by.
type fakeGauge struct {
	born  time.Time
	known []known
	other figure
}

type known struct {
	at time.Duration // since the gauge was made
	figure
}

func (g *fakeGauge) open(string, []string) {}
func (g *fakeGauge) discard() error        { return nil }
func (g *fakeGauge) readOther() figure     { return g.other }
func (g *fakeGauge) read() (f figure) {
	for _, k := range g.known {
		if time.Since(g.born) >= k.at {
			f = k.figure
		}
	}
	return f
}

// modelCalls is the figure of n model calls as the recorded runtime counts them;
// their bound is 1333 each.
func modelCalls(n int64) figure {
	return figure{input: 1111 * n, output: 266 * n, cached: 33 * n, plain: 1333 * n, model: "m"}
}

func TestMeter(t *testing.T) {
	const forever = 30 * time.Second
	answered := func(bound int64) spent { return spent{showed: true, answered: true, bound: bound} }
	type turn struct {
		spent
		limit  time.Duration // the read timeout; 0: forever
		cancel time.Duration // the context ends after this; 0: never; -1: before
		// what comes of it
		report      int64 // calls in the reported figure; 0: no report
		unaccounted bool
		dropped     bool
		took        time.Duration
	}
	at := func(d time.Duration, n int64) known { return known{d, modelCalls(n)} }
	for _, tt := range []struct {
		name  string
		known []known
		other figure
		turns []turn
	}{
		{"caught up at the tick", []known{at(5*time.Second, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1, took: 5 * time.Second}}},
		{"there at once", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1}}},
		{"a quota alone shows the model", []known{at(0, 1)}, figure{}, []turn{
			{spent: spent{answered: true, bound: 1333}, report: 1}}},
		{"a turn without the model waits for nothing and drops nothing", nil, figure{}, []turn{
			{spent: spent{answered: true}},
			{spent: spent{}}}},
		{"nothing at all drops the source, once", nil, figure{}, []turn{
			{spent: answered(1333), unaccounted: true, dropped: true, took: 6 * time.Second},
			{spent: answered(1333), unaccounted: true}}},
		{"nothing, in words of zeros", []known{at(0, 0)}, modelCalls(0), []turn{
			{spent: answered(0), unaccounted: true, dropped: true, took: 6 * time.Second}}},
		{"after one figure it stays for good", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), report: 1},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second}}},
		{"without a bound the wait runs its time", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(0), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"a figure below the bound", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(2666), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"a thought token is none of the bound's", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1334), report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"cut by the read timeout, the source stays", []known{at(5*time.Second, 1)}, figure{}, []turn{
			{spent: answered(1333), limit: time.Second, unaccounted: true, took: time.Second},
			{spent: answered(0), limit: 10 * time.Second, report: 1, unaccounted: true, took: 6 * time.Second}}},
		{"cut with a part of the figure there", []known{at(0, 1)}, modelCalls(2), []turn{
			{spent: answered(2666), limit: time.Second, unaccounted: true, took: time.Second}}},
		{"a read timeout of just the source's time", nil, modelCalls(1), []turn{
			{spent: answered(1333), limit: 6 * time.Second, report: 1, took: 6 * time.Second}}},
		{"what earlier bounds lack is waited for", []known{at(3*time.Second, 1), at(5*time.Second, 2)}, figure{}, []turn{
			{spent: answered(1333), limit: time.Second, unaccounted: true, took: time.Second},
			{spent: answered(1333), report: 2, took: 4 * time.Second}}},
		{"a late figure of an earlier turn covers that turn only", []known{at(0, 1), at(7*time.Second, 2), at(20*time.Second, 3)}, figure{}, []turn{
			{spent: answered(2666), report: 1, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), report: 2, unaccounted: true, took: 6 * time.Second},
			{spent: answered(0), limit: 9 * time.Second, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), limit: 9 * time.Second, report: 3, unaccounted: true, took: 6 * time.Second}}},
		{"the other place when time is up", nil, modelCalls(1), []turn{
			{spent: answered(1333), report: 1, took: 6 * time.Second}}},
		{"the larger total wins", []known{at(0, 2)}, modelCalls(1), []turn{
			{spent: answered(4000), report: 2, unaccounted: true, took: 6 * time.Second}}},
		{"growth counts from the last report, whoever made it", []known{at(7*time.Second, 1), at(10*time.Second, 2)}, modelCalls(1), []turn{
			{spent: answered(1333), report: 1, took: 6 * time.Second},
			{spent: answered(1333), report: 2, took: 4 * time.Second}}},
		{"a figure that falls is not reported", []known{at(0, 3), at(time.Second, 1)}, figure{}, []turn{
			{spent: answered(3999), report: 3},
			{spent: answered(1333), unaccounted: true, took: 6 * time.Second}}},
		{"the context's end releases the wait", []known{at(5*time.Second, 1)}, modelCalls(1), []turn{
			{spent: answered(1333), cancel: time.Second, unaccounted: true, took: time.Second}}},
		{"a context that has ended gets one look", []known{at(0, 1)}, figure{}, []turn{
			{spent: spent{showed: true}, cancel: -1, report: 1, unaccounted: true}}},
		{"a turn without an answer has no bound", []known{at(0, 1), at(8*time.Second, 2)}, figure{}, []turn{
			{spent: spent{showed: true, bound: 9999}, report: 1, unaccounted: true, took: 6 * time.Second},
			{spent: answered(1333), report: 2, took: 2 * time.Second}}},
		{"no time at all", []known{at(0, 1)}, figure{}, []turn{
			{spent: answered(1333), limit: -1, report: 1},
			{spent: answered(1333), limit: -1, unaccounted: true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &meter{gauge: &fakeGauge{time.Now(), tt.known, tt.other}, delay: gemini{}.delay()}
				var last int64
				for i, tu := range tt.turns {
					ctx, cancel := context.WithCancel(t.Context())
					switch {
					case tu.cancel < 0:
						cancel()
					case tu.cancel > 0:
						time.AfterFunc(tu.cancel, cancel)
					}
					limit := tu.limit
					if limit == 0 {
						limit = forever
					}
					begun := time.Now()
					got := m.turn(ctx, tu.spent, limit)
					cancel()
					last = max(last, tu.report)
					want := reading{
						report: tu.report > 0, usage: modelCalls(last).usage(), measured: last > 0,
						unaccounted: tu.unaccounted, dropped: tu.dropped,
					}
					if last > 0 {
						want.model = "m"
					}
					if got != want {
						t.Errorf("turn %d: %+v, want %+v", i+1, got, want)
					}
					if took := time.Since(begun); took != tu.took {
						t.Errorf("turn %d took %v, want %v", i+1, took, tu.took)
					}
				}
			})
		})
	}
}

func TestMeterWithoutSource(t *testing.T) {
	m, env, err := armSource(nil)
	if err != nil || env != nil {
		t.Fatal(env, err)
	}
	m.open("s", nil)
	if got, want := m.turn(t.Context(), spent{showed: true, answered: true}, time.Hour), (reading{unaccounted: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := m.discard(); err != nil {
		t.Error(err)
	}
}

// The gauge and the meter together, in the time of a batch tick.
func TestGeminiTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		m := &meter{gauge: r.geminiGauge, delay: gemini{}.delay()}
		m.open("s", []string{"GEMINI_CLI_HOME=" + r.home})
		call := spent{showed: true, answered: true, bound: 1333}
		check := func(what string, n int64, took time.Duration) {
			t.Helper()
			begun := time.Now()
			got := m.turn(t.Context(), call, 30*time.Second)
			if want := (reading{report: true, usage: modelCalls(n).usage(), model: "m", measured: true}); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
			if d := time.Since(begun); d != took {
				t.Errorf("%s took %v, want %v", what, d, took)
			}
		}
		time.AfterFunc(4950*time.Millisecond, func() { r.telemetry(answerRecord(1)) })
		check("telemetry at the tick", 1, 5*time.Second)
		r.chat("a.jsonl", chatHeader+chatLine("1", 1, "m")+chatLine("2", 1, "m"))
		check("the journal when the tick does not come", 2, 6*time.Second)
		r.telemetry(answerRecord(1) + answerRecord(1))
		check("telemetry that made up for it", 3, 0)
	})
}
