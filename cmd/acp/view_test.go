package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A grid is a terminal that knows what the painter uses, and says so if it is
// given anything else. Like tmux it forgets, on restoring a cursor, that the
// last column was just filled.
type grid struct {
	t          *testing.T
	cols, rows int
	cells      [][]rune
	scrolled   []string // lines that went out at the top
	x, y       int      // x == cols: the last column was filled
	sx, sy     int
	colour     bool // some was seen
}

func newGrid(t *testing.T, cols, rows int) *grid {
	g := &grid{t: t, cols: cols, rows: rows}
	for range rows {
		g.cells = append(g.cells, g.blank())
	}
	return g
}

func (g *grid) blank() []rune { return []rune(strings.Repeat(" ", g.cols)) }

// Write implements what a terminal does with bytes.
func (g *grid) Write(p []byte) (int, error) {
	s := string(p)
	for s != "" {
		if rest, ok := strings.CutPrefix(s, "\x1b"); ok {
			s = g.escape(rest)
			continue
		}
		r := []rune(s)[0]
		s = s[len(string(r)):]
		switch {
		case r == '\r':
			g.x = 0
		case r == '\n':
			g.down()
		case r < ' ':
			g.t.Fatalf("control character %q", r)
		default:
			g.put(r)
		}
	}
	return len(p), nil
}

func (g *grid) escape(s string) (rest string) {
	if body, ok := strings.CutPrefix(s, "["); ok {
		i := strings.IndexFunc(body, func(r rune) bool { return r >= 'A' })
		switch body[:i+1] {
		case "J":
			for x := g.x; x < g.cols; x++ {
				g.cells[g.y][x] = ' '
			}
			for y := g.y + 1; y < g.rows; y++ {
				g.cells[y] = g.blank()
			}
		case "2K":
			g.cells[g.y] = g.blank()
		case "0m", "2m", "31m", "32m", "33m":
			g.colour = true
		default:
			g.t.Fatalf("unknown sequence %q", body[:i+1])
		}
		return body[i+1:]
	}
	switch s[0] {
	case 'D':
		g.down()
	case 'M':
		if g.y == 0 {
			g.t.Fatal("reverse index in the top line")
		}
		g.y--
	case '7':
		g.sx, g.sy = g.x, g.y
	case '8':
		g.x, g.y = min(g.sx, g.cols-1), g.sy
	default:
		g.t.Fatalf("unknown sequence %q", s[:1])
	}
	return s[1:]
}

func (g *grid) down() {
	if g.y++; g.y == g.rows {
		g.scrolled = append(g.scrolled, string(g.cells[0]))
		g.cells = append(g.cells[1:], g.blank())
		g.y--
	}
}

func (g *grid) put(r rune) {
	w := runeWidth(r)
	if g.x+w > g.cols {
		g.x = 0
		g.down()
	}
	if w > 0 {
		g.cells[g.y][g.x] = r
		for i := 1; i < w; i++ {
			g.cells[g.y][g.x+i] = 0
		}
		g.x += w
	}
}

// resize changes the size as a terminal does that cuts its lines and keeps the
// cursor in sight.
func (g *grid) resize(cols, rows int) {
	for len(g.cells) > rows {
		if g.y < rows {
			g.cells = g.cells[:rows] // from the bottom first
			break
		}
		g.scrolled = append(g.scrolled, string(g.cells[0]))
		g.cells = g.cells[1:]
		g.y--
	}
	g.cols, g.rows = cols, rows
	for len(g.cells) < rows {
		g.cells = append(g.cells, g.blank())
	}
	for i, line := range g.cells {
		for len(line) < cols {
			line = append(line, ' ')
		}
		g.cells[i] = line[:cols]
	}
	g.x = min(g.x, cols-1)
}

// text is all that was ever shown and not erased, without blank ends.
func (g *grid) text() string {
	lines := append([]string(nil), g.scrolled...)
	for _, line := range g.cells {
		lines = append(lines, string(line))
	}
	for i, l := range lines {
		lines[i] = strings.TrimRight(strings.ReplaceAll(l, "\x00", ""), " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// status is the line under the cursor.
func (g *grid) status() string {
	if g.y+1 >= g.rows {
		return ""
	}
	return strings.TrimRight(string(g.cells[g.y+1]), " ")
}

func testPainter(g *grid, now *time.Time) *painter {
	return &painter{
		out:    g,
		colour: true,
		size:   func() (int, int) { return g.cols, g.rows },
		now:    func() time.Time { return *now },
		tool:   func() string { return "execute" },
	}
}

// step shows pieces as paint does.
func (p *painter) step(pieces ...piece) {
	p.measure()
	for _, x := range pieces {
		p.show(x)
	}
	p.flush()
}

func TestPainter(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newGrid(t, 60, 6)
	p := testPainter(g, &now)
	p.step(piece{kind: pieceStatus, s: "waiting"})
	if got := g.status(); got != "0s waiting, execute  (Ctrl-C stops)" {
		t.Errorf("status %q", got)
	}
	now = now.Add(1500 * time.Millisecond)
	p.step(piece{kind: pieceStatus, s: "running", events: 3}, piece{kind: pieceText, s: "Hello"})
	if got := g.status(); got != "1s running, execute, 3 events  (Ctrl-C stops)" {
		t.Errorf("status %q", got)
	}
	p.step(piece{kind: pieceText, s: ", world"}, piece{kind: pieceLine, style: warning, s: "note"})
	for i := range 10 {
		p.step(piece{kind: pieceText, s: fmt.Sprintf("line %d\n", i)})
	}
	full := strings.Repeat("f", 60)
	p.step(piece{kind: pieceText, s: full + "\n"}, piece{kind: pieceText, s: "a\tb"})
	if g.status() == "" {
		t.Error("no status line in a scrolled window")
	}
	p.step(piece{kind: pieceEndText}, piece{kind: pieceStatus})
	want := "Hello, world\nnote\nline 0\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\nline 9\n" + full + "\na       b"
	if got := g.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !g.colour {
		t.Error("no colour")
	}
}

// TestPainterSmallWindows: no status line, and no harm, where there is no room.
func TestPainterSmallWindows(t *testing.T) {
	t.Parallel()
	for cols := 1; cols < 12; cols++ {
		for rows := 1; rows < 5; rows++ {
			now := time.Unix(0, 0)
			g := newGrid(t, cols, rows)
			p := testPainter(g, &now)
			p.step(piece{kind: pieceStatus, s: "running", events: 1})
			p.step(piece{kind: pieceText, s: "abcdefghijkl\n\tx"})
			p.step(piece{kind: pieceStatus})
			flat := strings.NewReplacer("\n", "", " ", "").Replace(g.text())
			if flat != "abcdefghijklx" {
				t.Errorf("%d x %d: %q", cols, rows, g.text())
			}
		}
	}
}

// TestPainterNeverSmears writes at random while the window changes: at the end
// the window and what scrolled out of it hold the text and nothing else.
func TestPainterNeverSmears(t *testing.T) {
	t.Parallel()
	words := []string{"alpha ", "be", "世界", "\n", "gamma delta epsilon", "é", "e\u0301", "🙂", "x"}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1)) // #nosec G404 -- a test's dice
		now := time.Unix(0, 0)
		g := newGrid(t, 20+r.IntN(40), 4+r.IntN(10))
		p := testPainter(g, &now)
		p.colour = seed%2 == 0
		var said strings.Builder
		for range 200 {
			now = now.Add(time.Duration(r.IntN(500)) * time.Millisecond)
			word := words[r.IntN(len(words))]
			said.WriteString(word)
			p.step(piece{kind: pieceText, s: word}, piece{kind: pieceStatus, s: "running", events: r.IntN(1000)})
			if seed%3 == 0 && r.IntN(20) == 0 {
				p.step(piece{kind: pieceEndText}) // what is cut off in a resize is the terminal's doing
				g.resize(20+r.IntN(40), g.rows)
			}
		}
		p.step(piece{kind: pieceEndText}, piece{kind: pieceStatus})
		flat := strings.NewReplacer("\n", "", " ", "", "\u0301", "")
		got, want := flat.Replace(g.text()), flat.Replace(said.String())
		if seed%3 == 0 {
			// Lines that no longer fit were cut; what is left must still be of the text.
			if strings.Contains(got, "Ctrl") || strings.Contains(got, "running") {
				t.Fatalf("seed %d: the status line is in the text:\n%s", seed, g.text())
			}
			continue
		}
		if got != want {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, g.text(), said.String())
		}
		if p.colour != g.colour {
			t.Fatalf("seed %d: colour %v", seed, g.colour)
		}
	}
}

// TestPainterResizedInAWait: what comes after a wait is drawn for the window as
// it is then.
func TestPainterResizedInAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Unix(0, 0)
		g := newGrid(t, 60, 6)
		term := newTerminal(testPainter(g, &now), newLogSink())
		say := func(p piece) {
			term.pieces <- p
			synctest.Wait()
		}
		say(piece{kind: pieceStatus, s: "running"})
		for range 8 {
			say(piece{kind: pieceText, s: "word\n"})
		}
		g.resize(20, 6)
		say(piece{kind: pieceText, s: "end"})
		term.status("", 0)
		term.close()
		if got := g.text(); got != strings.Repeat("word\n", 8)+"end" {
			t.Errorf("%q", got)
		}
	})
}

// TestPainterLogs: log lines and pieces share the screen, and close shows what
// is left.
func TestPainterLogs(t *testing.T) {
	t.Parallel()
	g := newGrid(t, 60, 6)
	now := time.Unix(0, 0)
	logs := newLogSink()
	term := newTerminal(testPainter(g, &now), logs)
	st := &story{screen: term}
	st.turnStarts(1, 1, "x")
	st.text("half a line")
	if _, err := logs.Write([]byte("level=WARN msg=\"x\"\n")); err != nil {
		t.Fatal(err)
	}
	st.over(end{})
	got := g.text()
	if !strings.Contains(got, "half a line") || !strings.Contains(got, "level=WARN") || strings.Contains(got, "waiting") {
		t.Errorf("%q", got)
	}
}

func TestToolTap(t *testing.T) {
	t.Parallel()
	tap := &toolTap{}
	say := func(line string) {
		entry := `{"t":1,"dir":"recv","line":` + quoted(line) + "}\n"
		for _, part := range []string{entry[:10], entry[10:]} {
			if _, err := tap.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
	}
	call := func(id, fields string) string {
		return update(`"sessionUpdate":"tool_call_update","toolCallId":"` + id + `"` + fields)
	}
	for i, c := range []struct{ line, want string }{
		{call("1", `,"kind":"read"`), "read"},
		{call("2", `,"kind":"\u001b[31m"`), "tool"},
		{call("2", `,"kind":"execute","status":"in_progress"`), "execute"},
		{call("2", `,"status":"completed"`), "read"},
		{call("3", ``), "tool"},
		{`{"method":"session/request_permission","params":{"toolCall":{"toolCallId":"3"}}}`, "read"},
		{call("4", `,"title":"`+strings.Repeat("x", tapLine)+`"`), "read"},
		{call("5", `,"kind":"edit"`), "edit"},
		{`{"method":"session/prompt"}`, ""},
	} {
		if say(c.line); tap.current() != c.want {
			t.Errorf("line %d: %q, want %q", i, tap.current(), c.want)
		}
	}
	for i := range 10 * tapTools {
		say(call(fmt.Sprint("x", i), ""))
	}
	if len(tap.running) > tapTools {
		t.Errorf("%d tools are remembered", len(tap.running))
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	if got := oneLine(" a\x1b[31m\u202eb\nc\td\x00 "); got != "a?[31m?b c d?" {
		t.Errorf("%q", got)
	}
}

// TestPlainLine: a line that does not end is written in pieces, and ended once.
func TestPlainLine(t *testing.T) {
	var b bytes.Buffer
	p := &plainScreen{out: &outlet{w: &b, failed: func(err error) { t.Error(err) }}}
	p.text("one\ntwo")
	if b.String() != "one\n" {
		t.Errorf("%q before the line has ended", b.String())
	}
	long := strings.Repeat("x", 64<<10)
	p.text(long)
	if len(p.pending) > 0 || b.Len() != len("one\ntwo")+len(long) {
		t.Errorf("%d bytes wait, %d are written", len(p.pending), b.Len())
	}
	p.line(good, "behind")
	p.text("last")
	p.close()
	if want := "one\ntwo" + long + "\nbehind\nlast\n"; b.String() != want {
		t.Errorf("%.40q … %q", b.String(), b.String()[max(0, b.Len()-20):])
	}
}
