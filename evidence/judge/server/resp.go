package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Kind is the kind of a value on the wire: its first byte.
type Kind byte

// The kinds of RESP2.
const (
	Text   Kind = '+'
	Error  Kind = '-'
	Number Kind = ':'
	Bulk   Kind = '$'
	Array  Kind = '*'
)

// Value is one value on the wire.
type Value struct {
	Kind   Kind
	Null   bool
	Text   string
	Number int64
	Items  []Value
}

// Read reads one value.
func Read(from *bufio.Reader) (Value, error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return Value{}, err
	}
	line = bytes.TrimSuffix(line, []byte("\r\n"))
	if len(line) == 0 {
		return Value{}, errors.New("an empty line where a value begins")
	}
	v := Value{Kind: Kind(line[0]), Text: string(line[1:])}
	switch v.Kind {
	case Text, Error:
		return v, nil
	}
	if v.Number, err = strconv.ParseInt(v.Text, 10, 64); err != nil {
		return v, err
	}
	v.Text = ""
	switch v.Kind {
	case Number:
	case Bulk:
		if v.Null = v.Number < 0; v.Null {
			return v, nil
		}
		text := make([]byte, v.Number+2)
		if _, err := io.ReadFull(from, text); err != nil {
			return v, err
		}
		v.Text = string(text[:v.Number])
	case Array:
		v.Null = v.Number < 0
		for i := int64(0); i < v.Number; i++ {
			item, err := Read(from)
			if err != nil {
				return v, err
			}
			v.Items = append(v.Items, item)
		}
	default:
		return v, fmt.Errorf("%q is no kind of value", line)
	}
	return v, nil
}

// Append appends a value.
func (v Value) Append(to []byte) []byte {
	to = append(to, byte(v.Kind))
	switch {
	case v.Null:
		to = append(to, "-1"...)
	case v.Kind == Number:
		to = strconv.AppendInt(to, v.Number, 10)
	case v.Kind == Bulk:
		to = strconv.AppendInt(to, int64(len(v.Text)), 10)
		to = append(append(to, "\r\n"...), v.Text...)
	case v.Kind == Array:
		to = append(strconv.AppendInt(to, int64(len(v.Items)), 10), "\r\n"...)
		for _, item := range v.Items {
			to = item.Append(to)
		}
		return to
	default:
		to = append(to, v.Text...)
	}
	return append(to, "\r\n"...)
}

// Command returns the value of a command with these words.
func Command(words []string) Value {
	v := Value{Kind: Array}
	for _, word := range words {
		v.Items = append(v.Items, Value{Kind: Bulk, Text: word})
	}
	return v
}

// Words returns the words of a command.
func (v Value) Words() []string {
	words := make([]string, len(v.Items))
	for i, item := range v.Items {
		words[i] = item.Text
	}
	return words
}
