// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Set;
import java.util.function.Supplier;
import org.springframework.aop.framework.Advised;
import org.springframework.aop.framework.AopProxyUtils;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.BeanCreationException;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.core.Ordered;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.util.ClassUtils;

/**
 * Puts the lock around the {@link Locked} methods of all beans, before a transaction. It is a post-processor of its own, so nothing
 * else has to be there for it. A method whose lock would not be held for its work keeps the program from starting.
 */
class LockedProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor implements SmartInitializingSingleton {
    private static final long serialVersionUID = 1;
    static final String RETURNS_EARLY = "it returns before its work is done: return what the work has made, "
            + "or use DLocks.ask(…).holdAsync() in it";
    private transient ConfigurableListableBeanFactory beans;

    LockedProcessor(Supplier<DLocks> locks) {
        advisor = new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, Locked.class, true), new LockedInterceptor(locks));
        setBeforeExistingAdvisors(true); // the transaction is within the lock
        setProxyTargetClass(true);
        setOrder(Ordered.LOWEST_PRECEDENCE - 10); // those that call a bean's methods (schedulers, listeners) call them by the proxy
    }

    @Override
    public void setBeanFactory(BeanFactory beanFactory) {
        super.setBeanFactory(beanFactory);
        beans = (ConfigurableListableBeanFactory) beanFactory;
    }

    private static Set<Method> locked(Class<?> type) {
        return MethodIntrospector.selectMethods(type, (MethodIntrospector.MetadataLookup<Locked>) method -> AnnotatedElementUtils
                .findMergedAnnotation(method, Locked.class)).keySet();
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String beanName) {
        Class<?> type = AopProxyUtils.ultimateTargetClass(bean);
        for (Class<?> one = ClassUtils.getUserClass(type); one != null && one != Object.class; one = one.getSuperclass()) {
            for (Method method : one.getDeclaredMethods()) { // also private ones
                if (AnnotatedElementUtils.hasAnnotation(method, Locked.class)) {
                    check(method, beanName);
                }
            }
        }
        return super.postProcessAfterInitialization(bean, beanName);
    }

    private static void check(Method method, String beanName) {
        int is = method.getModifiers();
        String why = Modifier.isPrivate(is) || Modifier.isStatic(is) || Modifier.isFinal(is)
                ? "no proxy can be called instead of a method that is private, static or final"
                : Later.declared(method) ? RETURNS_EARLY : LockedInterceptor.mistake(method, AnnotatedElementUtils
                        .findMergedAnnotation(method, Locked.class));
        if (why != null) {
            throw new BeanCreationException(beanName, "@Locked cannot lock " + method + ": " + why);
        }
    }

    /** Finds the beans that this has not seen: others made them before, or put them there as they are. */
    @Override
    public void afterSingletonsInstantiated() {
        for (String name : beans.getSingletonNames()) {
            Object bean = beans.getSingleton(name);
            if (bean == null || locked(ClassUtils.getUserClass(AopProxyUtils.ultimateTargetClass(bean))).isEmpty()) {
                continue;
            }
            if (!(bean instanceof Advised advised) || advised.indexOf(advisor) < 0) {
                throw new BeanCreationException(name, "nothing takes the locks of its @Locked methods: the bean was made before "
                        + "dlock's post-processor could see it");
            }
        }
    }
}
