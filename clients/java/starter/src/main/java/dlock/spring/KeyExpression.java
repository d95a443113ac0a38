// SPDX-License-Identifier: MIT
package dlock.spring;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.springframework.expression.EvaluationContext;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.SpelNode;
import org.springframework.expression.spel.ast.CompoundExpression;
import org.springframework.expression.spel.ast.OpPlus;
import org.springframework.expression.spel.ast.PropertyOrFieldReference;
import org.springframework.expression.spel.ast.VariableReference;
import org.springframework.expression.spel.standard.SpelExpression;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** The expression of a lock's key. To Spring an unknown name is null, and null in a sum is the word: all would have one lock. */
final class KeyExpression {
    private static final SpelExpressionParser PARSER = new SpelExpressionParser();

    private final SpelExpression whole;
    /** What is added up, and can be looked at twice: arguments and their properties. */
    private final List<Expression> parts = new ArrayList<>();

    KeyExpression(String text) {
        whole = (SpelExpression) PARSER.parseExpression(text);
        split(whole.getAST());
    }

    private void split(SpelNode node) {
        if (node instanceof OpPlus) {
            children(node).forEach(this::split);
        } else if (node instanceof VariableReference || node instanceof CompoundExpression && children(node).allMatch(
                child -> child instanceof VariableReference || child instanceof PropertyOrFieldReference)) {
            parts.add(PARSER.parseExpression(node.toStringAST()));
        }
    }

    private static Stream<SpelNode> children(SpelNode node) {
        return Stream.iterate(0, i -> i < node.getChildCount(), i -> i + 1).map(node::getChild);
    }

    /** Returns the first name that the method does not give a value to, or null. */
    String mistake(Method method, String[] names) {
        return variables(whole.getAST()).filter(name -> !isKnown(name, method, names)).findFirst()
                .map(name -> "#" + name + " in " + whole.getExpressionString() + " is none of its parameters"
                        + (names == null ? ", whose names are not known: compile with -parameters, or write #p0 for the first"
                                : ", which are " + Arrays.toString(names))).orElse(null);
    }

    private static Stream<String> variables(SpelNode node) {
        Stream<String> below = children(node).flatMap(KeyExpression::variables);
        return node instanceof VariableReference ? Stream.concat(Stream.of(node.toStringAST().substring(1)), below) : below;
    }

    private static boolean isKnown(String name, Method method, String[] names) {
        return name.equals("root") || name.equals("this") || names != null && List.of(names).contains(name)
                || name.matches("[ap](0|[1-9][0-9]{0,2})") && Integer.parseInt(name.substring(1)) < method.getParameterCount();
    }

    /** Returns the key for a call. */
    String key(EvaluationContext arguments, Method method) {
        for (Expression part : parts) {
            if (part.getValue(arguments) == null) {
                throw new IllegalArgumentException(part.getExpressionString() + " is null in the key " + whole.getExpressionString()
                        + " of @Locked on " + method);
            }
        }
        String key = whole.getValue(arguments, String.class);
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException("the key " + whole.getExpressionString() + " of @Locked on " + method + " must not be empty");
        }
        return key;
    }
}
