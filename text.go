package acp

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Text of the runtime leaves the package clean (SPEC 4): without C0 and C1
// controls, DEL, bidirectional controls, and whole CSI and OSC sequences.

const (
	labelText = 200  // runes of a name or a version (SPEC 12)
	errorText = 1000 // runes of an error answer's message, and of its data
)

// appendClean appends a JSON string's text, cleaned, at most limit runes of it.
// cut tells that there was more.
func appendClean(dst []byte, v value, limit int) (out []byte, runes int, cut bool) {
	start := len(dst)
	dst = appendUnquoted(dst, v)
	n, runes, cut := clean(dst[start:], limit, true)
	return dst[:start+n], runes, cut
}

func cleanText(v value) string {
	text, _, _ := appendClean(nil, v, len(v))
	return string(text)
}

// cleanLine makes one line of at most limit runes out of s.
func cleanLine(s string, limit int) string {
	b := []byte(strings.ToValidUTF8(s, "\uFFFD"))
	n, _, _ := clean(b, limit, false)
	return string(b[:n])
}

func cleanLabel(s string) string { return cleanLine(s, labelText) }

// shown is cleanLine behind redact, which a control inside a secret must not
// deceive.
func shown(s string, limit int, redact func(string) string) string {
	return cleanLine(redact(cleanLine(s, len(s))), limit)
}

// clean works in place, on valid UTF-8, and returns how many bytes and runes
// remain. Newlines and tabs are kept if lines is set and are spaces otherwise.
func clean(b []byte, limit int, lines bool) (n, runes int, cut bool) {
	oscEnd := 0 // from where on the next end of an OSC sequence is looked for; -1: there is none
	for i := 0; i < len(b); {
		size := 1
		switch c := b[i]; {
		case c == '\n' || c == '\t':
			if !lines {
				b[i] = ' '
			}
		case c >= ' ' && c < 0x7f:
		case c == '\r' && !lines:
			b[i] = ' '
		case c < utf8.RuneSelf:
			i = escapeEnd(b, i, 1, c == 0x1b, &oscEnd)
			continue
		default:
			var r rune
			if r, size = utf8.DecodeRune(b[i:]); r < 0xa0 && size > 1 {
				i = escapeEnd(b, i, size, false, &oscEnd)
				continue
			}
			if r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				i += size
				continue
			}
		}
		if runes == limit {
			return n, runes, true
		}
		if n < i { // something before it was left out
			copy(b[n:], b[i:i+size])
		}
		n += size
		runes++
		i += size
	}
	return n, runes, false
}

// escapeEnd returns the index behind the control at b[i] and behind the whole
// CSI or OSC sequence that it begins, if it does.
func escapeEnd(b []byte, i, size int, esc bool, oscEnd *int) int {
	next := i + size
	var intro byte // what ESC is followed by, or what a C1 control stands for
	switch {
	case esc && next < len(b):
		intro = b[next]
		next++
	case size == 2:
		intro = b[i+1] - 0x40
	}
	switch intro {
	case '[':
		j := next
		for j < len(b) && b[j] >= 0x20 && b[j] <= 0x3f {
			j++
		}
		if j < len(b) && b[j] >= 0x40 && b[j] <= 0x7e {
			return j + 1
		}
	case ']':
		if *oscEnd >= 0 && *oscEnd < next {
			*oscEnd = findOSCEnd(b, next)
		}
		if *oscEnd >= 0 {
			return *oscEnd
		}
	}
	return i + size
}

// findOSCEnd returns the index behind the next BEL or ST, -1 if there is none.
func findOSCEnd(b []byte, from int) int {
	for i := from; i < len(b); i++ {
		switch {
		case b[i] == 0x07:
			return i + 1
		case i+1 < len(b) && (b[i] == 0x1b && b[i+1] == '\\' || b[i] == 0xc2 && b[i+1] == 0x9c):
			return i + 2
		}
	}
	return -1
}

const (
	maxWords   = 8 << 10 // bytes of an early exit report's cause (SPEC 2)
	wordsStart = "[earlier output omitted] "
)

// lastWords makes one line of the end of standard error; empty if nothing in it
// is readable. cut tells that kept is not all of it.
func lastWords(kept []byte, cut bool, redact func(string) string) string {
	if i := bytes.IndexByte(kept, '\n'); cut && i >= 0 {
		kept = kept[i+1:] // half a line could be half a secret
	}
	text := []byte(strings.NewReplacer("\r", " ", "\t", " ").Replace(strings.ToValidUTF8(string(kept), "\uFFFD")))
	n, _, _ := clean(text, len(text), true)
	var lines []string
	for line := range strings.SplitSeq(string(text[:n]), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	words := redact(strings.Join(lines, " | "))
	if !cut && len(words) <= maxWords {
		return words
	}
	if over := len(words) - (maxWords - len(wordsStart)); over > 0 {
		for over < len(words) && !utf8.RuneStart(words[over]) {
			over++
		}
		words = words[over:]
	}
	return wordsStart + words
}

// each yields the members of an object with their keys, or the elements of an
// array. v stood in a scanned line.
func (v value) each(yield func(key, elem value) bool) {
	object := v.kind() == '{'
	if !object && v.kind() != '[' {
		return
	}
	var s scanner
	for i := skipSpace(v, 1); v[i] != '}' && v[i] != ']'; i = skipSpace(v, i) {
		if v[i] == ',' {
			i = skipSpace(v, i+1)
		}
		var key value
		if start := i; object {
			i = skipString(v, i)
			key = v[start:i]
			i = skipColon(v, i)
		}
		start := i
		i = s.skip(v, i, 1)
		if !yield(key, v[start:i]) {
			return
		}
	}
}

// get returns the member of that exact key, the last of several. What is
// missing or of another type takes its default (SPEC 12).
func (v value) get(key string) (found value) {
	for k, elem := range v.each {
		if k.is(key) {
			found = elem
		}
	}
	return found
}

// str is what a string spells; empty for anything else.
func (v value) str() string {
	if v.kind() != '"' {
		return ""
	}
	return string(appendUnquoted(nil, v))
}

// has reports that a value is present and not null.
func (v value) has() bool { return v.kind() != 0 && v.kind() != 'n' }

func (v value) yes() bool { return v.kind() == 't' }

func (v value) compact() string {
	var b bytes.Buffer
	_ = json.Compact(&b, v) // it was scanned
	return b.String()
}
