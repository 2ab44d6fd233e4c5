package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// rule is what an expect step requires of one value of a message.
type rule struct {
	Type     string
	Equals   any
	Min      *float64 // of a number, or of the length of a string or array
	Absolute bool     // an absolute path
}

// decode decodes a JSON value with its numbers as they stand.
func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// lookup returns the value at a dotted path; an element of an array goes by its
// index. It is nil where there is none.
func lookup(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch t := v.(type) {
		case map[string]any:
			v = t[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(t) {
				return nil
			}
			v = t[i]
		default:
			return nil
		}
	}
	return v
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// broken says how v breaks the rule, or "".
func (r rule) broken(v any) string {
	kind := kindOf(v)
	n, isNumber := v.(json.Number)
	integer := isNumber && !strings.ContainsAny(n.String(), ".eE")
	if r.Type != "" && r.Type != kind && (r.Type != "integer" || !integer) {
		return fmt.Sprintf("is of type %s, not %s", kind, r.Type)
	}
	if r.Equals != nil && !reflect.DeepEqual(v, r.Equals) {
		return fmt.Sprintf("is %v, not %v", v, r.Equals)
	}
	if r.Min != nil && size(v) < *r.Min {
		return fmt.Sprintf("is below %v", *r.Min)
	}
	if s, _ := v.(string); r.Absolute && !filepath.IsAbs(s) {
		return fmt.Sprintf("is no absolute path: %.100q", s)
	}
	return ""
}

func size(v any) float64 {
	switch t := v.(type) {
	case string:
		return float64(len(t))
	case []any:
		return float64(len(t))
	case json.Number:
		f, _ := new(big.Float).SetString(t.String())
		if f != nil {
			x, _ := f.Float64()
			return x
		}
	}
	return 0
}

// UnmarshalJSON keeps the numbers of equals as they stand.
func (r *rule) UnmarshalJSON(b []byte) error {
	type plain rule
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	d.UseNumber()
	return d.Decode((*plain)(r))
}

// missed says how an answer differs from what was wanted, or "".
func missed(raw []byte, want map[string]any) string {
	v, err := decode(raw)
	if err != nil {
		return err.Error()
	}
	for path, w := range want {
		if got := lookup(v, path); !reflect.DeepEqual(got, w) {
			return fmt.Sprintf("%s is %v, not %v", path, got, w)
		}
	}
	return ""
}
