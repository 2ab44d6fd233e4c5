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

// cell returns the table's cell for a row of a runtime.
func (v *verdicts) cell(rt Runtime, row string) string {
	for _, x := range v.sorted() {
		if x.subject != rt.Name || x.row != row {
			continue
		}
		switch {
		case x.word != "ok":
			return x.word
		case row == "refuse":
			return rt.Facts.Refused.String()
		case row == "error":
			return rt.Facts.Broken.String()
		}
		return x.word
	}
	return ""
}

func (o Outcome) String() string {
	if o.Kind == "" || o.Kind == o.Reason {
		return "`" + o.Reason + "`"
	}
	return "`" + o.Reason + "`, `" + o.Kind + "`"
}

const docHead = `# Real counterparts

Written by ` + "`interop/run update`" + `: every row below was run against the real thing, with a
pretend model on the loopback. A dash is a row that does not apply, with its
reason below the table; an empty cell was not run. In the columns *refuse* and
*error* stands how the turn ended.

`

// markdown returns docs/INTEROP.md.
func (v *verdicts) markdown() string {
	var s strings.Builder
	s.WriteString(docHead)
	for _, r := range rows() {
		fmt.Fprintf(&s, "- **%s**: %s\n", r.name, r.what)
	}
	s.WriteString("\n| runtime | version |")
	for _, r := range rows() {
		s.WriteString(" " + r.name + " |")
	}
	s.WriteString(" left behind |\n|---|---|" + strings.Repeat("---|", len(rows())+1) + "\n")
	var reasons []string
	for _, rt := range Runtimes() {
		pin := Pins()[rt.pinName()]
		fmt.Fprintf(&s, "| %s | %s |", rt.Name, strings.Join(pin.Packages, ", "))
		for _, r := range rows() {
			s.WriteString(" " + v.cell(rt, r.name) + " |")
			if why := rt.Facts.Not[r.name]; why != "" {
				reasons = append(reasons, fmt.Sprintf("- %s, %s: %s\n", rt.Name, r.name, why))
			}
		}
		s.WriteString(" " + escapes(rt.Facts) + " |\n")
	}
	s.WriteString("\nRows that do not apply:\n\n" + strings.Join(reasons, ""))
	s.WriteString("\n| counterpart | row | verdict |\n|---|---|---|\n")
	for _, x := range v.sorted() {
		if !slices.ContainsFunc(rows(), func(r row) bool { return r.name == x.row }) {
			fmt.Fprintf(&s, "| %s | %s | %s |\n", x.subject, x.row, x.word)
		}
	}
	return s.String()
}

func escapes(f Facts) string {
	var all []string
	for _, name := range f.Escapes {
		all = append(all, "always `"+name+"`")
	}
	for _, name := range f.EscapesBusy {
		if !slices.Contains(f.Escapes, name) {
			all = append(all, "`"+name+"` of a running command")
		}
	}
	if all == nil {
		return "nothing"
	}
	return strings.Join(all, ", ")
}
