//go:build ignore

// Controls shows that the tests notice when a guard is gone. Each line of
// controls.txt names a file, a text in it, what to put there instead, and the
// test that must then fail, separated by tabs; \n and \t mean a newline and a
// tab, unless a text that holds them stands in the file as it is. Blank lines and
// those that begin with # are skipped.
//
//	go run ./testdata/controls.go [-file PART] [-test PART] [-race] [-list FILE]
//
// It works on a copy, prints a line for each control, and fails unless every one
// was caught. The controls of files for another system are skipped.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

type control struct {
	where                     string // the line it stands on
	file, text, instead, test string
	dir                       string // of the test's package
}

func main() {
	file := flag.String("file", "", "only controls of files whose path holds `PART`")
	test := flag.String("test", "", "only controls whose test's name holds `PART`")
	race := flag.Bool("race", false, "with the race detector")
	list := flag.String("list", "", "read this `FILE` alone")
	flag.Parse()
	if err := run(*file, *test, *list, *race); err != nil {
		fmt.Fprintln(os.Stderr, "controls:", err)
		os.Exit(1)
	}
}

func run(file, test, list string, race bool) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	all, err := readAll(root, list)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c control) bool {
		return !strings.Contains(c.file, file) || !strings.Contains(c.test, test)
	})
	slices.SortStableFunc(all, func(a, b control) int { return cmp.Compare(a.file, b.file) })
	tests, err := findTests(root)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "controls-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := copyTree(root, work); err != nil {
		return err
	}
	w := &workshop{dir: work, race: race}
	for i := range all {
		if all[i].dir, err = tests.dir(all[i]); err != nil {
			fmt.Printf("%-14s %s\n", "ERROR", err)
			w.bad++
		}
	}
	if err := w.base(all); err != nil {
		return err
	}
	for _, c := range all {
		if c.dir != "" {
			w.report(c)
		}
	}
	fmt.Printf("%d controls: %d caught, %d skipped, %d wrong\n", len(all), w.caught, w.skipped, w.bad)
	if w.bad > 0 {
		return errors.New("not every control was caught")
	}
	return nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// readAll reads controls.txt, or the list that was named.
func readAll(root, list string) ([]control, error) {
	if list == "" {
		list = filepath.Join(root, "testdata", "controls.txt")
	}
	var all []control
	b, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where := fmt.Sprintf("%s:%d", filepath.Base(list), i+1)
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[0] == "" || f[1] == "" || f[3] == "" || f[1] == f[2] {
			return nil, fmt.Errorf("%s: not file, text, another text and test, separated by tabs", where)
		}
		all = append(all, control{where: where, file: f[0], text: f[1], instead: f[2], test: f[3]})
	}
	return all, nil
}

// left out of the copy: what no test reads, and what is large.
func leftOut(path string) bool {
	return slices.Contains([]string{".git", "bin", "interop"}, path)
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case leftOut(rel) && d.IsDir():
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, info.Mode().Perm())
	})
}

// testIndex says in which directories a test stands, and in which files.
type testIndex map[string][]string

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

func findTests(root string) (testIndex, error) {
	index := make(testIndex)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && leftOut(rel) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			index[string(m[1])] = append(index[string(m[1])], filepath.ToSlash(rel))
		}
		return nil
	})
	return index, err
}

// dir returns the package of a control's test: the one of its file, if that has
// such a test.
func (index testIndex) dir(c control) (string, error) {
	files := index[c.test]
	if len(files) == 0 {
		return "", fmt.Errorf("%s: no test is called %s", c.where, c.test)
	}
	own := filepath.ToSlash(filepath.Dir(c.file))
	dir := filepath.ToSlash(filepath.Dir(files[0]))
	for _, f := range files {
		if d := filepath.ToSlash(filepath.Dir(f)); d == own {
			dir = d
		}
	}
	return dir, nil
}

// elsewhere reports whether a control is of a file for another system.
func (c control) elsewhere() bool {
	name := strings.TrimSuffix(filepath.Base(c.file), ".go")
	for _, system := range []string{"windows", "linux", "darwin", "bsd"} {
		if strings.HasSuffix(name, "_"+system) && system != runtime.GOOS {
			return true
		}
	}
	return false
}

// workshop is the copy, and how it went so far.
type workshop struct {
	dir                  string
	race                 bool
	caught, skipped, bad int
}

// base runs every named test on the tree as it is: one that fails anyway would
// catch everything.
func (w *workshop) base(all []control) error {
	tests := make(map[string][]string)
	for _, c := range all {
		if c.dir != "" && !c.elsewhere() && !slices.Contains(tests[c.dir], c.test) {
			tests[c.dir] = append(tests[c.dir], c.test)
		}
	}
	for dir, names := range tests {
		if failed, out := w.goTest(dir, strings.Join(names, "|"), 20*time.Minute); failed {
			return fmt.Errorf("without any change, in %s:\n%s", dir, out)
		}
	}
	return nil
}

func (w *workshop) goTest(dir, tests string, limit time.Duration) (failed bool, out []byte) {
	args := []string{"test", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout=" + limit.String(), "-run=^(" + tests + ")$"}
	if w.race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./"+dir)...)
	cmd.Dir = w.dir
	out, err := cmd.CombinedOutput()
	return err != nil, out
}

func (w *workshop) report(c control) {
	began := time.Now()
	result := w.try(c)
	switch {
	case result == "skipped":
		w.skipped++
	case strings.HasPrefix(result, "caught"):
		w.caught++
	default:
		w.bad++
	}
	fmt.Printf("%-14s %5.1fs  %-20s %-34s %s -> %s\n", result, time.Since(began).Seconds(), c.file, c.test, c.text, c.instead)
}

// try applies one control, runs its test and takes it back.
func (w *workshop) try(c control) (result string) {
	if c.elsewhere() {
		return "skipped"
	}
	name := filepath.Join(w.dir, filepath.FromSlash(c.file))
	whole, err := os.ReadFile(name)
	if err != nil {
		return "NO FILE"
	}
	text, instead := []byte(c.text), []byte(c.instead)
	if !bytes.ContainsRune(text, '\\') || !bytes.Contains(whole, text) {
		spelled := strings.NewReplacer(`\n`, "\n", `\t`, "\t")
		text, instead = []byte(spelled.Replace(c.text)), []byte(spelled.Replace(c.instead))
	}
	switch n := bytes.Count(whole, text); {
	case n == 0:
		return "NO SUCH TEXT"
	case n > 1:
		return fmt.Sprintf("STANDS %d TIMES", n)
	}
	if err := os.WriteFile(name, bytes.Replace(whole, text, instead, 1), 0o600); err != nil {
		return "ERROR"
	}
	failed, out := w.goTest(c.dir, c.test, 3*time.Minute)
	if err := os.WriteFile(name, whole, 0o600); err != nil {
		return "ERROR"
	}
	switch {
	case !failed:
		return "MISSED"
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		fmt.Printf("%s", out)
		return "DOES NOT BUILD"
	case bytes.Contains(out, []byte("panic: test timed out")):
		return "caught (hangs)"
	}
	return "caught"
}
