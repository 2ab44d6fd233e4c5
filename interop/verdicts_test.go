package interop

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// verdicts collects what each row of each counterpart showed.
type verdicts struct {
	mu  sync.Mutex
	all []verdict
	why map[string]string // of a test that was skipped
}

type verdict struct {
	subject, row, word, why string
	took                    time.Duration
}

// time begins a row; the returned function ends it.
func (v *verdicts) time(subject, row string, t *testing.T) func() {
	began := time.Now()
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		word := "ok"
		switch {
		case t.Failed():
			word = "FAIL"
		case t.Skipped():
			word = "-"
		}
		v.all = append(v.all, verdict{subject, row, word, v.why[t.Name()], time.Since(began)})
	}
}

// skip skips a test and keeps the reason for the table.
func (v *verdicts) skip(t *testing.T, why string) {
	t.Helper()
	v.mu.Lock()
	if v.why == nil {
		v.why = map[string]string{}
	}
	v.why[t.Name()] = why
	v.mu.Unlock()
	t.Skip(why)
}

// print writes the table to standard output: a line a row, and at the end what
// was skipped and why.
func (v *verdicts) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	var skipped []string
	passed, failed := 0, 0
	for _, x := range v.sorted() {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%.1f s\n", x.subject, x.row, x.word, x.took.Seconds())
		switch x.word {
		case "ok":
			passed++
		case "FAIL":
			failed++
		default:
			skipped = append(skipped, fmt.Sprintf("skipped: %s %s: %s", x.subject, x.row, x.why))
		}
	}
	_ = w.Flush()
	for _, s := range skipped {
		fmt.Println(s)
	}
	fmt.Printf("rows: %d passed, %d failed, %d skipped\n", passed, failed, len(skipped))
}

func (v *verdicts) sorted() []verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := slices.Clone(v.all)
	slices.SortStableFunc(all, func(a, b verdict) int { return strings.Compare(a.subject, b.subject) })
	return all
}
