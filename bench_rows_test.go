//go:build linux

package acp_test

import (
	"slices"
	"strconv"
	"testing"
)

// medians runs jobs side by side, one of each an iteration, and returns the
// median of each figure.
func medians(b *testing.B, jobs ...benchJob) []benchResult {
	b.Helper()
	all := make([]map[string][]float64, len(jobs))
	for b.Loop() {
		for i, j := range jobs {
			if all[i] == nil {
				all[i] = make(map[string][]float64)
			}
			for k, v := range measure(b, j) {
				all[i][k] = append(all[i][k], v)
			}
		}
	}
	out := make([]benchResult, len(jobs))
	for i, figures := range all {
		out[i] = make(benchResult)
		for k, v := range figures {
			slices.Sort(v)
			out[i][k] = v[len(v)/2]
		}
	}
	b.ReportMetric(0, "ns/op") // an iteration is a whole run: its time says nothing
	return out
}

// benchTurns compares with the floors over the same output in the same run.
func benchTurns(b *testing.B, says string, n, turns int) {
	j := benchJob{Mode: "turns", Says: says, N: n, Times: turns, Pinned: true}
	lines, valid, ours := j, j, j
	lines.Client, valid.Client, ours.Client = "lines", "valid", "acp"
	r := medians(b, lines, valid, ours)
	b.ReportMetric(r[0]["msg/s"], "lines-msg/s")
	b.ReportMetric(r[1]["msg/s"], "valid-msg/s")
	b.ReportMetric(r[2]["msg/s"], "msg/s")
	b.ReportMetric(r[2]["msg/s"]/r[0]["msg/s"], "x-lines")
	b.ReportMetric(r[2]["msg/s"]/r[1]["msg/s"], "x-valid")
	b.ReportMetric(r[1]["cpu-ns/msg"]/r[2]["cpu-ns/msg"], "x-valid-cpu") // which other load disturbs less
	b.ReportMetric(r[2]["allocs/msg"], "allocs/msg")
	b.ReportMetric(r[0]["peak-MiB"], "lines-peak-MiB")
	b.ReportMetric(r[2]["peak-MiB"], "peak-MiB")
}

func BenchmarkTurn40B(b *testing.B)    { benchTurns(b, "text:40", 1000, 200) }
func BenchmarkTurn2KiB(b *testing.B)   { benchTurns(b, "text:2048", 1000, 100) }
func BenchmarkTurnMixed(b *testing.B)  { benchTurns(b, "mixed", 1000, 200) }
func BenchmarkBurst40B(b *testing.B)   { benchTurns(b, "text:40", 200_000, 1) }
func BenchmarkBurst2KiB(b *testing.B)  { benchTurns(b, "text:2048", 100_000, 1) }
func BenchmarkBurstMixed(b *testing.B) { benchTurns(b, "mixed", 200_000, 1) }

// What an update costs as its turn grows, and what of it stays.
func BenchmarkGrowth(b *testing.B) {
	for _, says := range []string{"text:40", "mixed", "unknown"} {
		for n := 1000; n <= 1_000_000; n *= 10 {
			b.Run(says+"/"+strconv.Itoa(n), func(b *testing.B) {
				r := medians(b, benchJob{Mode: "turns", Client: "acp", Says: says, N: n, Times: max(1, 100_000/n), Pinned: true})
				b.ReportMetric(1e9/r[0]["msg/s"], "ns/update")
				b.ReportMetric(r[0]["heap-KiB"], "heap-KiB")
				b.ReportMetric(r[0]["peak-MiB"], "peak-MiB")
			})
		}
	}
}

func benchIdle(b *testing.B, n int) {
	j := benchJob{Mode: "idle", Says: "text:2048", N: n, Times: 200}
	floor, ours := j, j
	floor.Client, ours.Client = "decode", "acp"
	r := medians(b, floor, ours)
	b.ReportMetric(r[0]["KiB/session"], "floor-KiB/session")
	b.ReportMetric(r[1]["KiB/session"], "KiB/session")
	b.ReportMetric(r[0]["threads"], "floor-threads")
	b.ReportMetric(r[1]["threads"], "threads")
}

func BenchmarkIdleFresh(b *testing.B) { benchIdle(b, 0) }
func BenchmarkIdleUsed(b *testing.B)  { benchIdle(b, 900) }

func benchTimes(b *testing.B, mode string) (floor, ours float64) {
	j := benchJob{Mode: mode, Says: "text:40", Times: 40}
	f, o := j, j
	f.Client, o.Client = "decode", "acp"
	r := medians(b, f, o)
	b.ReportMetric(r[0]["p50-ms"], "floor-p50-ms")
	b.ReportMetric(r[1]["p50-ms"], "p50-ms")
	return r[0]["p50-ms"], r[1]["p50-ms"]
}

func BenchmarkStart(b *testing.B) {
	floor, ours := benchTimes(b, "start")
	b.ReportMetric(ours/floor, "x-floor")
}

// The floor closes standard input, sends SIGTERM and reaps: what is above it is
// ours and not the runtime's own exit.
func BenchmarkStop(b *testing.B) {
	floor, ours := benchTimes(b, "stop")
	b.ReportMetric(ours-floor, "over-floor-ms")
}

func BenchmarkBlockedConsumer(b *testing.B) {
	r := medians(b, benchJob{Mode: "blocked", Client: "acp", Says: "flood"})
	b.ReportMetric(r[0]["peak-MiB"], "peak-MiB")
	b.ReportMetric(r[0]["stop-ms"], "stop-ms")
}

func BenchmarkLongLine(b *testing.B) {
	for _, says := range []string{"bigline", "endless"} {
		b.Run(says, func(b *testing.B) {
			r := medians(b, benchJob{Mode: "line", Client: "acp", Says: says})
			b.ReportMetric(r[0]["over-start-MiB"], "over-start-MiB")
		})
	}
}
