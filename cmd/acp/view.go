package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// A piece is one thing for the painter to show.
type piece struct {
	kind   pieceKind
	style  style
	s      string
	events int
}

type pieceKind int

const (
	pieceText pieceKind = iota
	pieceEndText
	pieceLine
	pieceStatus // s: the phase, empty for none
)

// terminal is the screen of a terminal: a painter on a goroutine of its own, so
// that the status line lives while nothing happens.
type terminal struct {
	pieces chan piece // sender: the run, which also closes it; receiver: the painter
	done   chan struct{}
}

func newTerminal(p *painter, logs *logSink) *terminal {
	t := &terminal{make(chan piece, 64), make(chan struct{})}
	go func() { // ends when pieces is closed
		defer close(t.done)
		p.paint(t.pieces, logs)
	}()
	return t
}

func (t *terminal) text(s string)           { t.pieces <- piece{kind: pieceText, s: s} }
func (t *terminal) endText()                { t.pieces <- piece{kind: pieceEndText} }
func (t *terminal) line(st style, s string) { t.pieces <- piece{kind: pieceLine, style: st, s: s} }
func (t *terminal) failure(s string)        { t.line(bad, s) }
func (t *terminal) status(phase string, events int) {
	t.pieces <- piece{kind: pieceStatus, s: phase, events: events}
}

func (t *terminal) close() {
	close(t.pieces)
	<-t.done
}

// A painter writes to a terminal and keeps a status line under what it wrote.
//
// The status line is always below the cursor. So one "erase below" removes it,
// however the terminal has moved or re-wrapped things when it was resized, and
// nothing but text ever stands above. To draw it, IND and RI make sure that a
// line below exists without moving the cursor, and the cursor is saved and
// restored around it.
type painter struct {
	out    io.Writer
	colour bool
	size   func() (cols, rows int)
	now    func() time.Time
	tool   func() string // what goes on, a tool above all; empty: nothing known

	buf     []byte // the next write
	cols    int
	rows    int
	col     int    // column of the cursor, always below cols
	wrapped bool   // the cursor is at the start of a line only because the last one was full
	drawn   string // the status line that is on the screen

	phase  string
	since  time.Time
	events int
}

const refresh = 200 * time.Millisecond

// paint shows pieces and log lines until pieces is closed.
func (p *painter) paint(pieces <-chan piece, logs *logSink) {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case x, ok := <-pieces:
			p.measure() // not before the wait: what is drawn for another width smears
			if !ok {
				p.phase = ""
				p.flush()
				logs.rest(p.out)
				return
			}
			p.show(x)
			for n := len(pieces); n > 0; n-- {
				p.show(<-pieces)
			}
		case line := <-logs.lines:
			p.measure()
			p.show(piece{kind: pieceLine, style: faint, s: oneLine(string(line))})
		case <-tick.C:
			p.measure()
		}
		p.flush()
	}
}

// measure takes a new size into account. What stands on the current line is
// then unknown, so that a new one begins.
func (p *painter) measure() {
	cols, rows := p.size()
	if cols <= 0 {
		cols, rows = 80, 24
	}
	if cols == p.cols && rows == p.rows {
		return
	}
	p.erase()
	if p.col > 0 {
		p.newline()
	}
	p.cols, p.rows = cols, rows
}

func (p *painter) show(x piece) {
	switch x.kind {
	case pieceText:
		p.erase()
		p.write(x.s)
	case pieceEndText:
		p.erase()
		p.endText()
	case pieceLine:
		p.erase()
		p.endText()
		p.buf = append(p.buf, '\r') // over the ^C that a terminal echoes
		p.begin(x.style)
		p.write(x.s)
		p.finish(x.style)
		p.write("\n")
	case pieceStatus:
		if p.phase == "" {
			p.since = p.now()
		}
		p.phase, p.events = x.s, x.events
	}
}

// flush puts the status line under it all and writes.
func (p *painter) flush() {
	if status := p.statusLine(); status != p.drawn {
		p.erase()
		if status != "" {
			p.buf = append(p.buf, "\x1bD\x1bM\x1b7\r\n\x1b[2K"...)
			p.begin(faint)
			p.buf = append(p.buf, status...)
			p.finish(faint)
			p.buf = append(p.buf, "\x1b8"...)
			p.drawn = status
		}
	}
	if len(p.buf) > 0 {
		_, _ = p.out.Write(p.buf) // the outlet ends the run if this fails
		p.buf = p.buf[:0]
	}
}

func (p *painter) statusLine() string {
	if p.phase == "" || p.cols < 8 || p.rows < 3 {
		return ""
	}
	s := fmt.Sprintf("%s %s", p.now().Sub(p.since).Truncate(time.Second), p.phase)
	if tool := p.tool(); tool != "" {
		s += ", " + tool
	}
	if p.events > 0 {
		s += fmt.Sprintf(", %d events", p.events)
	}
	return cut(s+"  (Ctrl-C stops)", p.cols-1)
}

func (p *painter) erase() {
	if p.drawn != "" {
		p.buf = append(p.buf, "\x1b[J"...)
		p.drawn = ""
	}
}

func (p *painter) begin(st style) {
	if p.colour && st != plainText {
		p.buf = append(append(append(p.buf, "\x1b["...), st...), 'm')
	}
}

func (p *painter) finish(st style) {
	if p.colour && st != plainText {
		p.buf = append(p.buf, "\x1b[0m"...)
	}
}

func (p *painter) endText() {
	if p.col > 0 {
		p.newline()
	}
	p.wrapped = false
}

func (p *painter) newline() {
	p.buf = append(p.buf, "\r\n"...)
	p.col, p.wrapped = 0, false
}

// write shows text and breaks its lines itself: a terminal's own wrapping keeps
// the cursor in a state that saving and restoring it loses.
func (p *painter) write(s string) {
	for _, r := range s {
		switch {
		case r == '\n':
			if !p.wrapped {
				p.newline()
			}
			p.wrapped = false
		case r == '\t':
			p.put(" ", min(8-p.col%8, p.cols-p.col))
		default:
			p.rune(r)
		}
	}
}

func (p *painter) rune(r rune) {
	w := runeWidth(r)
	if w == 0 {
		p.buf = append(p.buf, string(r)...)
		return
	}
	if p.col+w > p.cols {
		p.newline()
	}
	p.buf = append(p.buf, string(r)...)
	p.advance(w)
}

func (p *painter) put(s string, times int) {
	p.buf = append(p.buf, strings.Repeat(s, times)...)
	p.advance(times)
}

func (p *painter) advance(w int) {
	p.col += w
	p.wrapped = false
	if p.col >= p.cols {
		p.newline()
		p.wrapped = true
	}
}

// cut shortens s to a width.
func cut(s string, width int) string {
	used := 0
	for i, r := range s {
		if used += runeWidth(r); used > width {
			return s[:i]
		}
	}
	return s
}

// runeWidth is the number of columns of r, rather too many than too few: a
// line broken early harms nothing.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && r <= 0x115f,
		r >= 0x231a && r <= 0x23ff,
		r >= 0x2600 && r <= 0x27bf,
		r >= 0x2b1b && r <= 0x2b55,
		r >= 0x2e80 && r <= 0xa4cf,
		r >= 0xa960 && r <= 0xa97f,
		r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f,
		r >= 0xff00 && r <= 0xff60,
		r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f000 && r <= 0x1faff,
		r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}
