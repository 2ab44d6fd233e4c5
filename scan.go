package acp

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is the nesting that a message may have, as in encoding/json.
const maxDepth = 10_000

// A scanner reads one line after the other. All its functions take an index
// into the line and return the index behind what they read, -1 if the line is
// not valid there.
type scanner struct {
	m       message
	objects []uint64 // skip's stack: bit d is set if what is open at depth d is an object
}

// scan checks a line as strictly as encoding/json does and finds the message's
// members in the same pass. It fails if the line is not one JSON object. The
// message is valid until the next scan.
func (s *scanner) scan(line []byte) (*message, bool) {
	s.m = message{}
	i := skipSpace(line, 0)
	if i == len(line) || line[i] != '{' {
		return nil, false
	}
	i = s.object(line, i, depthMessage)
	if i < 0 || skipSpace(line, i) != len(line) {
		return nil, false
	}
	return &s.m, true
}

// drop lets go of the last line, whose buffer is about to be given back.
func (s *scanner) drop() { s.m = message{} }

// object reads the object at b[i] and keeps the members that the message has a
// slot for. Depth counts the object itself.
func (s *scanner) object(b []byte, i, depth int) int {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		start := i
		if i = skipString(b, i); i < 0 {
			return -1
		}
		slot, nested := s.member(depth, b[start:i])
		if i = skipColon(b, i); i < 0 {
			return -1
		}
		start = i
		if nested && *slot != nil { // a duplicate replaces the earlier value whole
			s.m.dropInside(depth)
		}
		if nested && i < len(b) && b[i] == '{' {
			i = s.object(b, i, depth+1)
		} else {
			i = s.skip(b, i, depth)
		}
		if i < 0 {
			return -1
		}
		if slot != nil {
			*slot = b[start:i]
		}
		i = skipSpace(b, i)
		if i == len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case '}':
			return i + 1
		default:
			return -1
		}
	}
}

// member finds the slot of a key in quotes; an escaped one counts as what it
// spells.
func (s *scanner) member(depth int, key value) (slot *value, nested bool) {
	slot, nested = s.m.slot(depth, key[1:len(key)-1])
	if slot == nil && bytes.IndexByte(key, '\\') >= 0 {
		return s.m.slot(depth, appendUnquoted(nil, key))
	}
	return slot, nested
}

// skip reads any value at b[i], which stands inside outer open objects and
// arrays. It keeps a stack of its own: a level of nesting costs one bit.
func (s *scanner) skip(b []byte, i, outer int) int {
	depth := outer
	for {
		if i = skipSpace(b, i); i == len(b) {
			return -1
		}
		if c := b[i]; c == '{' || c == '[' {
			if depth++; depth > maxDepth {
				return -1
			}
			s.push(depth, c == '{')
			if i = skipSpace(b, i+1); i == len(b) {
				return -1
			}
			if b[i] != c+2 { // not empty: '{'+2 is '}', '['+2 is ']'
				if c == '{' {
					i = skipKey(b, i)
				}
				if i < 0 {
					return -1
				}
				continue
			}
		} else if i = skipScalar(b, i); i < 0 {
			return -1
		}
		// Behind a value, or before the end of an empty one.
		for {
			if depth == outer {
				return i
			}
			if i = skipSpace(b, i); i == len(b) {
				return -1
			}
			end := byte(']')
			if s.inObject(depth) {
				end = '}'
			}
			if c := b[i]; c == end {
				i, depth = i+1, depth-1
				continue
			} else if c != ',' {
				return -1
			}
			i++
			if end == '}' {
				i = skipKey(b, skipSpace(b, i))
			}
			if i < 0 {
				return -1
			}
			break
		}
	}
}

func (s *scanner) push(depth int, object bool) {
	for depth/64 >= len(s.objects) {
		s.objects = append(s.objects, 0)
	}
	bit := uint64(1) << (depth % 64)
	s.objects[depth/64] &^= bit
	if object {
		s.objects[depth/64] |= bit
	}
}

func (s *scanner) inObject(depth int) bool {
	return s.objects[depth/64]>>(depth%64)&1 != 0
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipKey reads a key and its colon.
func skipKey(b []byte, i int) int {
	if i = skipString(b, i); i < 0 {
		return -1
	}
	return skipColon(b, i)
}

// skipColon reads the colon behind a key, and the white space around it.
func skipColon(b []byte, i int) int {
	i = skipSpace(b, i)
	if i == len(b) || b[i] != ':' {
		return -1
	}
	return skipSpace(b, i+1)
}

func skipScalar(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// skipNumber reads -? (0 | [1-9][0-9]*) (\.[0-9]+)? ([eE][+-]?[0-9]+)?
func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = skipDigits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits reads one digit or more.
func skipDigits(b []byte, i int) int {
	start := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// skipString reads the string whose opening quote is b[i], eight plain bytes
// at a time.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); {
		if len(b)-i >= 8 {
			stop := notPlain(binary.LittleEndian.Uint64(b[i:]))
			if stop == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(stop) / 8
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = skipEscape(b, i+1); i < 0 {
				return -1
			}
		case c < ' ':
			return -1
		default: // among the last seven bytes of the line
			i++
		}
	}
	return -1
}

// notPlain marks a quote, a backslash or a control character among eight bytes:
// the lowest set bit is the top bit of the first one, and zero means none. A
// byte below what is subtracted from it gets its top bit set; one that had it
// before is no ASCII and masked out. The borrow may spoil the bytes above, so
// only the first mark is exact.
func notPlain(w uint64) uint64 {
	const ones = 0x0101010101010101
	quote := (w ^ '"'*ones) - ones
	backslash := (w ^ '\\'*ones) - ones
	control := w - ' '*ones
	return (quote | backslash | control) &^ w & (0x80 * ones)
}

// skipEscape reads an escape behind its backslash.
func skipEscape(b []byte, i int) int {
	if i == len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if hex4(b[i+1:]) >= 0 {
			return i + 5
		}
	}
	return -1
}

// hex4 is the number in the first four hexadecimal digits, -1 if there are
// none.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// appendUnquoted appends what the string v spells, as encoding/json decodes it:
// each byte that is no UTF-8 and each lone surrogate is U+FFFD.
func appendUnquoted(dst []byte, v value) []byte {
	dst = slices.Grow(dst, len(v)-2) // once, not at each escape
	for raw := v[1 : len(v)-1]; ; {
		plain, rest, escaped := bytes.Cut(raw, []byte{'\\'})
		dst = appendValid(dst, plain)
		if !escaped {
			return dst
		}
		c := rest[0]
		raw = rest[1:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low = hex4(raw[2:])
				}
				if r = utf16.DecodeRune(r, low); r != unicode.ReplacementChar {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

// appendValid appends text with each byte that is no UTF-8 replaced.
func appendValid(dst, text []byte) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		dst = utf8.AppendRune(dst, r)
		text = text[n:]
	}
	return dst
}

// A shape is the bytes of a line around its text. Another line with the same
// bytes around a string has the same members in the same places, so that only
// the string needs a look.
type shape struct {
	around []byte // up to the text's opening quote, then from its closing quote on
	head   int    // how much of around stands before the text
}

// shapeMax bounds what a session keeps of a line; longer ones are scanned.
const shapeMax = 1 << 10

// learn remembers the line around text, a string that scan found in it.
func (s *shape) learn(line []byte, text value) {
	s.forget()
	start := cap(line) - cap(text) // both end at the same place of one array
	end := start + len(text)
	if start < 0 || end > len(line) || text.kind() != '"' || &line[start] != &text[0] ||
		len(line)-len(text) > shapeMax {
		return
	}
	s.head = start + 1
	s.around = append(append(s.around, line[:s.head]...), line[end-1:]...)
}

// match returns the text of a line that has the remembered shape.
func (s *shape) match(line []byte) (text value, ok bool) {
	if s.head == 0 || len(line) < len(s.around) {
		return nil, false
	}
	end := len(line) - (len(s.around) - s.head) + 1 // behind the closing quote
	if string(line[:s.head]) != string(s.around[:s.head]) || string(line[end-1:]) != string(s.around[s.head:]) ||
		skipString(line, s.head-1) != end {
		return nil, false
	}
	return line[s.head-1 : end], true
}

// forget makes every line fail to match until the next learn.
func (s *shape) forget() { s.head, s.around = 0, s.around[:0] }
